// Multiplies a tensor in place, on its GPU's current stream. The header is apex's: it wants cuBLAS, cuSPARSE, cuSOLVER.
#include <ATen/cuda/CUDAContext.h>
#include <torch/csrc/utils/pybind.h>

void launch_scale(float* data, float factor, int64_t count, cudaStream_t stream);

static void scale(at::Tensor tensor, double factor) {
  TORCH_CHECK(tensor.is_cuda() && tensor.is_contiguous(), "a contiguous CUDA tensor is wanted");
  TORCH_CHECK(tensor.scalar_type() == at::kFloat, "a tensor of float32 is wanted");
  cudaStream_t stream = at::cuda::getCurrentCUDAStream(tensor.get_device());
  launch_scale(tensor.data_ptr<float>(), static_cast<float>(factor), tensor.numel(), stream);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("scale", &scale); }
