# Troubleshooting MXNet, "Computation Graph and Lazy Evaluation"
with autograd.record():
    output = net(input)
    loss = loss_fn(output, label)
loss.backward()
