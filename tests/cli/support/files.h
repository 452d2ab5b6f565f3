// Small valid files of the kinds that `overlace run` reads, for tests that then damage them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace overlace::cli_test {

/// config.json of a two-head Llama with hidden size 16; `changes` replace or (with "") remove keys, as JSON text.
std::string small_config(const std::map<std::string, std::string>& changes = {});

struct Tensor {
  std::string dtype = "F32";
  std::vector<int64_t> shape;
  std::string bytes;
};
using Tensors = std::map<std::string, Tensor>;

/// All tensors of one layer of small_config(), small distinct values.
Tensors small_tensors();
/// The file, with its header's length as given or (negative) as it is.
std::string safetensors(const Tensors& tensors, int64_t lie_about_length = -1);
/// Header text and data, whatever they say.
std::string safetensors_raw(const std::string& header, const std::string& data);

/// npy of version 1; the shape text is written as it is.
std::string npy(const std::string& shape, const std::string& data, const std::string& descr = "<f4",
                const std::string& fortran = "False");
/// rows x cols small fp32 values.
std::string floats(int64_t count, float first = 0.0f);

}  // namespace overlace::cli_test
