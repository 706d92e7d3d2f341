# How can GPU order be correctly handled in MXNet and TensorFlow?, "Example 2: MXNet GPU Context Management"
import mxnet as mx

# Choose a GPU
ctx = mx.gpu(0) # Use GPU 0

# Define the model
data = mx.sym.Variable('data')
fc1 = mx.sym.FullyConnected(data = data, name='fc1', num_hidden=128)
act1 = mx.sym.Activation(data = fc1, name='relu1', act_type="relu")
fc2 = mx.sym.FullyConnected(data = act1, name='fc2', num_hidden=10)
softmax = mx.sym.SoftmaxOutput(data = fc2, name = 'softmax')
net = mx.sym.Group([softmax])

# Initialize model parameters on the specified GPU
model = mx.mod.Module(symbol=net, context=ctx)
model.bind(data_shapes=[('data', (batch_size, 784))], label_shapes=[('softmax_label', (batch_size,))], for_training=True)
model.init_params(initializer=mx.init.Xavier())


# Training with specified context
model.fit(train_iter, eval_data=val_iter, optimizer='adam',
          optimizer_params={'learning_rate':0.01},
          eval_metric='acc',
          batch_end_callback = mx.callback.Speedometer(batch_size, 100),
          num_epoch=10)
