"""Text generation with openvino-genai: prints tokens per second as JSON.

Arguments: the file, and the numbers of tokens to generate, of tokens of the long prompt, and of streams.
"""

import json
import sys
import time

import numpy as np
import openvino as ov
import openvino_genai as genai


def main(path, length, prompt, streams):
    """Measure one stream, a prompt, and several streams."""
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    pipeline = genai.LLMPipeline(path, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=2)
    config = genai.GenerationConfig(max_new_tokens=length, do_sample=False, ignore_eos=True, apply_chat_template=False)
    first = genai.GenerationConfig(max_new_tokens=1, do_sample=False, ignore_eos=True, apply_chat_template=False)
    rng = np.random.default_rng(0)

    def seconds(count, size, settings):
        tokens = [ov.Tensor(rng.integers(1000, 40000, (1, size))) for _ in range(count)]
        inputs = tokens[0] if count == 1 else pipeline.get_tokenizer().decode(np.concatenate([t.data for t in tokens]))
        start = time.perf_counter()
        pipeline.generate(inputs, settings)
        return time.perf_counter() - start

    def rate(count, size):
        return count * (length - 1) / (seconds(count, size, config) - seconds(count, size, first))

    seconds(streams, 33, config)
    print(json.dumps({
        "one stream, tokens/s": rate(1, 1),
        f"a prompt of {prompt}, tokens/s": prompt / min(seconds(1, prompt, first) for _ in range(2)),
        f"{streams} streams, tokens/s": rate(streams, 33),
    }))  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
