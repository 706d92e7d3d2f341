# Troubleshooting MXNet, "Under-utilized GPUs"
mx.profiler.set_config(profile_all=True, filename='profile.json')
mx.profiler.set_state('run')
