// Runs the programs of cached calls (programs.py) without Python: allocates buffers, launches kernels by the CUDA driver,
// and computes gradients in a node of the autograd graph. Python is called only for what is not cached yet.
//
// The file needs neither CUDA's headers nor its libraries: the functions of the driver are passed as addresses.

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;
using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

using LaunchKernel = int (*)(
    void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
    unsigned shared_bytes, void* stream, void** params, void** extra);
using GetContext = int (*)(void** context);
using SetContext = int (*)(void* context);

LaunchKernel launch_kernel = nullptr;
GetContext get_context = nullptr;
SetContext set_context = nullptr;

constexpr size_t kMaxParams = 160;

void set_driver(uint64_t launch, uint64_t get, uint64_t set) {
  launch_kernel = reinterpret_cast<LaunchKernel>(launch);
  get_context = reinterpret_cast<GetContext>(get);
  set_context = reinterpret_cast<SetContext>(set);
}

void* current_context() {
  void* context = nullptr;
  if (get_context != nullptr) {
    get_context(&context);
  }
  return context;
}

// A tensor that a pass allocates. An absent one is not needed.
struct Buffer {
  bool is_present = false;
  std::vector<int64_t> shape, stride;  // no stride: contiguous
  at::ScalarType dtype = at::kFloat;
  bool is_zero = false;
  size_t first = 0, last = 0;  // the launches before which it is allocated and after which it is freed

  Tensor allocate(const Tensor& q) const {
    if (!is_present) {
      return {};
    }
    auto options = q.options().dtype(dtype).requires_grad(false);
    if (is_zero) {
      return at::zeros(shape, options);
    }
    return stride.empty() ? at::empty(shape, options) : at::empty_strided(shape, stride, options);
  }
};

// A parameter of a kernel that is the address of a tensor, plus a number of bytes.
struct Address {
  size_t param;
  size_t slot;
  int64_t bytes;
};

struct Launch {
  void* function;
  std::array<unsigned, 3> grid;
  unsigned num_threads, shared_bytes;
  std::vector<uint64_t> params;  // the values of parameters that are not tensors
  std::vector<Address> addresses;

  void run(const std::vector<Tensor>& tensors, void* stream) const {
    std::array<uint64_t, kMaxParams> values;
    std::array<void*, kMaxParams> pointers;
    for (size_t i = 0; i < params.size(); ++i) {
      values[i] = params[i];
      pointers[i] = &values[i];
    }
    for (const auto& address : addresses) {
      const auto& x = tensors[address.slot];
      if (x.defined()) {
        values[address.param] = reinterpret_cast<uint64_t>(x.data_ptr()) + address.bytes;
      }
    }
    const int error = launch_kernel(
        function, grid[0], grid[1], grid[2], num_threads, 1, 1, shared_bytes, stream, pointers.data(), nullptr);
    if (error != 0) {  // not TORCH_CHECK, which walks the stack
      throw std::runtime_error("headwise: a kernel could not be launched (CUDA error " + std::to_string(error) + ")");
    }
  }
};

// Where a gradient is: a tensor of the pass, an element of its sum over some dimensions, or a multiple of it.
struct Gradient {
  bool is_present = false;
  size_t slot = 0;
  std::vector<int64_t> sum_dims;
  int64_t element = -1;  // none
  double scale = 0.0;  // none
  at::ScalarType dtype = at::kFloat;  // of the multiple
};

struct Program {
  std::vector<Launch> launches;
  std::vector<Buffer> buffers;
  std::vector<Gradient> gradients;
  int64_t centered = -1;  // the slot of an input from whose rows their mean is subtracted, or none

  // Appends the buffers to the tensors, and runs the launches.
  void run(std::vector<Tensor>& tensors, void* stream) const {
    const size_t num_inputs = tensors.size();
    tensors.resize(num_inputs + buffers.size());
    for (size_t i = 0; i < launches.size(); ++i) {
      for (size_t j = 0; j < buffers.size(); ++j) {
        if (buffers[j].first == i) {
          tensors[num_inputs + j] = buffers[j].allocate(tensors[0]);
        }
      }
      launches[i].run(tensors, stream);
      for (size_t j = 0; j < buffers.size(); ++j) {
        if (buffers[j].last == i) {
          tensors[num_inputs + j].reset();
        }
      }
    }
  }

  variable_list run_backward(std::vector<Tensor>& tensors, void* stream) const {
    if (centered >= 0) {
      auto& x = tensors[centered];
      x = x.sub(x.mean({-1}, true));
    }
    run(tensors, stream);
    variable_list grads;
    grads.reserve(gradients.size());
    const Gradient* last = nullptr;
    Tensor last_sum;
    for (const auto& gradient : gradients) {
      if (!gradient.is_present) {
        grads.emplace_back();
      } else if (gradient.scale != 0.0) {
        const auto& x = tensors[gradient.slot];
        auto multiple = at::empty_like(x, x.options().dtype(gradient.dtype));
        grads.push_back(at::mul_out(multiple, x, at::scalar_tensor(gradient.scale)));
      } else if (gradient.sum_dims.empty()) {
        grads.push_back(tensors[gradient.slot]);
      } else {
        if (last == nullptr || last->slot != gradient.slot || last->sum_dims != gradient.sum_dims) {
          last = &gradient;
          last_sum = tensors[gradient.slot].sum(gradient.sum_dims);
        }
        grads.push_back(gradient.element < 0 ? last_sum : last_sum.select(0, gradient.element));
      }
    }
    return grads;
  }
};

// A cached call: its forward pass, and its backward passes by the layout of the gradient and the inputs that need one.
struct NativeCall : torch::CustomClassHolder {
  std::shared_ptr<Program> forward;
  size_t num_inputs, num_results;
  bool has_received;  // attention, the buffer after the results
  std::vector<std::vector<int64_t>> strides;  // of the inputs and the output
  py::object compute_gradients;  // NativeGradients in native.py

  struct Key {
    std::vector<bool> needs_grad;
    std::vector<int64_t> stride;
    uint64_t alignment;
    bool operator==(const Key& other) const {
      return alignment == other.alignment && stride == other.stride && needs_grad == other.needs_grad;
    }
  };
  std::mutex mutex;
  std::vector<std::pair<Key, std::shared_ptr<Program>>> backwards;

  ~NativeCall() override {
    py::gil_scoped_acquire gil;
    compute_gradients = py::object();
  }

  // The output, and received attention if it is requested, given the tensors of the forward pass.
  variable_list outputs(const std::vector<Tensor>& tensors) const {
    variable_list result{tensors[num_inputs]};
    if (has_received) {
      result.push_back(tensors[num_inputs + num_results]);
    }
    return result;
  }

  bool has_layouts_of(const variable_list& saved) const {
    for (size_t i = 0; i < strides.size(); ++i) {
      if (saved[i].strides() != at::IntArrayRef(strides[i])) {
        return false;
      }
    }
    return true;
  }

  std::shared_ptr<Program> find_backward(const Tensor& d_output, const std::vector<bool>& needs_grad) {
    Key key{needs_grad, d_output.strides().vec(), reinterpret_cast<uint64_t>(d_output.data_ptr()) % 16};
    std::lock_guard<std::mutex> lock(mutex);
    for (const auto& [known, program] : backwards) {
      if (known == key) {
        return program;
      }
    }
    return nullptr;
  }

  void add_backward(
      std::vector<bool> needs_grad, std::vector<int64_t> stride, uint64_t alignment, std::shared_ptr<Program> program) {
    std::lock_guard<std::mutex> lock(mutex);
    backwards.emplace_back(Key{std::move(needs_grad), std::move(stride), alignment}, std::move(program));
  }

  // Computes the gradients in Python, which adds a program for the next time if there is one.
  variable_list compute_in_python(
      const variable_list& saved, const variable_list& d_outputs, const std::vector<bool>& needs_grad) {
    py::gil_scoped_acquire gil;
    py::list tensors;
    for (const auto& x : saved) {
      tensors.append(x.defined() ? py::cast(x) : py::none());
    }
    py::tuple needs(needs_grad.size());
    for (size_t i = 0; i < needs_grad.size(); ++i) {
      needs[i] = py::bool_(needs_grad[i]);
    }
    auto self = c10::intrusive_ptr<NativeCall>::reclaim_copy(this);
    py::object grads = compute_gradients(self, tensors, d_outputs, needs);
    variable_list result;
    for (auto grad : grads) {
      result.push_back(grad.is_none() ? Tensor() : grad.cast<Tensor>());
    }
    return result;
  }
};

struct NativeAttention : torch::autograd::Function<NativeAttention> {
  static variable_list forward(
      AutogradContext* ctx, c10::intrusive_ptr<NativeCall> call, int64_t stream, at::TensorList inputs) {
    std::vector<Tensor> tensors(inputs.begin(), inputs.end());
    call->forward->run(tensors, reinterpret_cast<void*>(stream));
    variable_list outputs = call->outputs(tensors);
    tensors.resize(call->num_inputs + call->num_results);
    ctx->save_for_backward(std::move(tensors));
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    ctx->saved_data["stream"] = stream;  // the engine runs the backward pass on the stream of the forward pass
    ctx->saved_data["context"] = reinterpret_cast<int64_t>(current_context());
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, variable_list d_outputs) {
    auto call = c10::static_intrusive_pointer_cast<NativeCall>(ctx->saved_data["call"].toCapsule());
    auto saved = ctx->get_saved_variables();
    std::vector<bool> needs_grad(call->num_inputs);
    for (size_t i = 0; i < call->num_inputs; ++i) {
      needs_grad[i] = ctx->needs_input_grad(i);
    }
    variable_list grads;
    if (at::GradMode::is_enabled() || !call->has_layouts_of(saved)) {
      grads = call->compute_in_python(saved, d_outputs, needs_grad);
    } else {
      if (d_outputs[0].stride(-1) != 1) {
        d_outputs[0] = d_outputs[0].contiguous();
      }
      if (call->has_received) {
        d_outputs[1] = d_outputs[1].contiguous();
        if (reinterpret_cast<uint64_t>(d_outputs[1].data_ptr()) % 16 != 0) {
          d_outputs[1] = d_outputs[1].clone();  // the kernels are compiled for aligned addresses
        }
      }
      if (auto program = call->find_backward(d_outputs[0], needs_grad)) {
        void* context = reinterpret_cast<void*>(ctx->saved_data["context"].toInt());
        if (context != nullptr && current_context() != context) {
          set_context(context);  // this thread of the engine has none yet
        }
        saved.insert(saved.end(), d_outputs.begin(), d_outputs.end());
        grads = program->run_backward(saved, reinterpret_cast<void*>(ctx->saved_data["stream"].toInt()));
      } else {
        grads = call->compute_in_python(saved, d_outputs, needs_grad);
      }
    }
    grads.insert(grads.begin(), 2, Tensor());  // of the call and the stream
    return grads;
  }
};

variable_list attend(const c10::intrusive_ptr<NativeCall>& call, const std::vector<Tensor>& inputs, int64_t stream) {
  if (at::GradMode::is_enabled()) {
    for (const auto& x : inputs) {
      if (x.requires_grad()) {
        return NativeAttention::apply(call, stream, at::TensorList(inputs));
      }
    }
  }
  std::vector<Tensor> tensors(inputs);
  call->forward->run(tensors, reinterpret_cast<void*>(stream));
  return call->outputs(tensors);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  py::class_<Program, std::shared_ptr<Program>>(m, "Program")
      .def(py::init<>())
      .def(
          "add_buffer",
          [](Program& program, bool is_present, std::vector<int64_t> shape, std::vector<int64_t> stride,
             at::ScalarType dtype, bool is_zero, size_t first, size_t last) {
            program.buffers.push_back({is_present, std::move(shape), std::move(stride), dtype, is_zero, first, last});
          })
      .def(
          "add_launch",
          [](Program& program, uint64_t function, std::array<unsigned, 3> grid, unsigned num_threads,
             unsigned shared_bytes, std::vector<uint64_t> params,
             const std::vector<std::tuple<size_t, size_t, int64_t>>& addresses) {
            TORCH_CHECK(params.size() <= kMaxParams, "too many parameters");
            Launch launch{reinterpret_cast<void*>(function), grid, num_threads, shared_bytes, std::move(params), {}};
            for (const auto& [param, slot, bytes] : addresses) {
              launch.addresses.push_back({param, slot, bytes});
            }
            program.launches.push_back(std::move(launch));
          })
      .def(
          "add_gradient",
          [](Program& program, bool is_present, size_t slot, std::vector<int64_t> sum_dims, int64_t element,
             double scale, at::ScalarType dtype) {
            program.gradients.push_back({is_present, slot, std::move(sum_dims), element, scale, dtype});
          })
      .def("center", [](Program& program, int64_t slot) { program.centered = slot; });
  py::class_<NativeCall, c10::intrusive_ptr<NativeCall>>(m, "NativeCall")
      .def(py::init([](std::shared_ptr<Program> forward, size_t num_results, bool has_received,
                       std::vector<std::vector<int64_t>> strides, py::object compute_gradients) {
        auto call = c10::make_intrusive<NativeCall>();
        call->forward = std::move(forward);
        call->num_inputs = strides.size() - 1;
        call->num_results = num_results;
        call->has_received = has_received;
        call->strides = std::move(strides);
        call->compute_gradients = std::move(compute_gradients);
        return call;
      }))
      .def("add_backward", &NativeCall::add_backward);
  m.def("set_driver", &set_driver);
  m.def("attend", &attend, py::call_guard<py::gil_scoped_release>());
}
