# Troubleshooting MXNet, "Numerical Instability in Mixed Precision Training"
amp.init()
trainer = Trainer(params, optimizer, update_on_kvstore=False)
with autograd.record():
    with amp.scale_loss(loss_fn(output, label), trainer) as scaled_loss:
        scaled_loss.backward()
