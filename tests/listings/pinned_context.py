# Troubleshooting MXNet, "Pin Operator Execution Contexts"
with mx.Context(mx.gpu(0)) as ctx:
    net.collect_params().reset_ctx(ctx)
