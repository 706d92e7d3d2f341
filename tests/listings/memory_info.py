# Troubleshooting MXNet, "Monitor Memory Usage in Hybrid Models"
print(mx.context.gpu_memory_info(0))
