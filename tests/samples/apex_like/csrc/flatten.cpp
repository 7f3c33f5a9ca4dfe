// Tensors end to end, in one.
#include <ATen/ops/cat.h>
#include <torch/csrc/utils/pybind.h>

#include <vector>

static at::Tensor flatten(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& each : tensors) flat.push_back(each.reshape({-1}));
  return at::cat(flat);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("flatten", &flatten); }
