#include "tests/cli/support/files.h"

#include <cstring>

namespace overlace::cli_test {
namespace {

std::string little_endian(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>((value >> (8 * i)) & 0xFF);
  return out;
}

std::string list(const std::vector<int64_t>& values) {
  std::string out;
  for (int64_t value : values) out += (out.empty() ? "" : ",") + std::to_string(value);
  return "[" + out + "]";
}

}  // namespace

std::string small_config(const std::map<std::string, std::string>& changes) {
  std::map<std::string, std::string> keys = {{"model_type", "\"llama\""},  {"hidden_size", "16"},
                                             {"intermediate_size", "32"},  {"num_hidden_layers", "1"},
                                             {"num_attention_heads", "2"}, {"num_key_value_heads", "2"},
                                             {"hidden_act", "\"silu\""},   {"max_position_embeddings", "64"},
                                             {"rms_norm_eps", "1e-05"},    {"rope_theta", "10000.0"}};
  for (const auto& [key, value] : changes) {
    if (value.empty()) {
      keys.erase(key);
    } else {
      keys[key] = value;
    }
  }
  std::string out;
  for (const auto& [key, value] : keys) out += (out.empty() ? "" : ", ") + ("\"" + key + "\": " + value);
  return "{" + out + "}";
}

Tensors small_tensors() {
  const std::string layer = "model.layers.0.";
  const std::map<std::string, std::vector<int64_t>> shapes = {
      {"input_layernorm", {16}},      {"post_attention_layernorm", {16}}, {"self_attn.q_proj", {16, 16}},
      {"self_attn.k_proj", {16, 16}}, {"self_attn.v_proj", {16, 16}},     {"self_attn.o_proj", {16, 16}},
      {"mlp.gate_proj", {32, 16}},    {"mlp.up_proj", {32, 16}},          {"mlp.down_proj", {16, 32}}};
  Tensors out;
  float first = 0.01f;
  for (const auto& [name, shape] : shapes) {
    const int64_t count = shape.size() == 1 ? shape[0] : shape[0] * shape[1];
    out[layer + name + ".weight"] = {"F32", shape, floats(count, first)};
    first += 0.01f;
  }
  return out;
}

std::string safetensors(const Tensors& tensors, int64_t lie_about_length) {
  std::string header, data;
  for (const auto& [name, tensor] : tensors) {
    header += (header.empty() ? "" : ",") + ("\"" + name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":") +
              list(tensor.shape) + ",\"data_offsets\":[" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + tensor.bytes.size()) + "]}";
    data += tensor.bytes;
  }
  header = "{" + header + "}";
  const auto length = lie_about_length < 0 ? header.size() : static_cast<uint64_t>(lie_about_length);
  return little_endian(length, 8) + header + data;
}

std::string safetensors_raw(const std::string& header, const std::string& data) {
  return little_endian(header.size(), 8) + header + data;
}

std::string npy(const std::string& shape, const std::string& data, const std::string& descr,
                const std::string& fortran) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
  while ((10 + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  return std::string("\x93NUMPY\x01\x00", 8) + little_endian(header.size(), 2) + header + data;
}

std::string floats(int64_t count, float first) {
  std::string out;
  for (int64_t i = 0; i < count; ++i) {
    const float value = first + 0.001f * static_cast<float>(i % 97);
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    out.append(bytes, sizeof bytes);
  }
  return out;
}

}  // namespace overlace::cli_test
