# Troubleshooting MXNet, "Identify Bottlenecks in HybridBlocks"
net.hybridize(static_alloc=True, static_shape=True)
