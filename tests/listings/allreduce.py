# Troubleshooting MXNet, "Debug Inconsistent Training Across Nodes"
os.environ['MXNET_KVSTORE_REDUCE_BUCKET_SIZE'] = '2048'
kv = mx.kv.create('nccl')
