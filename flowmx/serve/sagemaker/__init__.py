"""Inference scripts of SageMaker's MXNet containers, unchanged: model_fn, input_fn, predict_fn, output_fn, ..."""
