# Troubleshooting MXNet, "Use Static Shapes and Allocation"
net.hybridize(static_shape=True, static_alloc=True)
