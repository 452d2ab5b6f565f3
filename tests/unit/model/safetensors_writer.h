// Writes safetensors files for tests: well-formed ones, and headers as given.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace overlace::model {

inline std::string with_length(std::string header, const std::string& data) {
  uint64_t length = header.size();
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i, length >>= 8) bytes[i] = static_cast<char>(length & 0xFF);
  return bytes + header + data;
}

struct TestTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string data;
};

inline std::string fp32_bytes(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline std::string safetensors(const std::vector<TestTensor>& tensors) {
  std::string header = R"({"__metadata__":{"format":"pt"})", data;
  for (const TestTensor& t : tensors) {
    header += ",\"" + t.name + "\":{\"dtype\":\"" + t.dtype + "\",\"shape\":[";
    for (size_t i = 0; i < t.shape.size(); ++i) header += (i == 0 ? "" : ",") + std::to_string(t.shape[i]);
    header += "],\"data_offsets\":[" + std::to_string(data.size()) + "," + std::to_string(data.size() + t.data.size());
    header += "]}";
    data += t.data;
  }
  return with_length(header + "}", data);
}

}  // namespace overlace::model
