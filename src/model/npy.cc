#include "src/model/npy.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "src/base/file.h"
#include "src/base/half.h"
#include "src/model/file.h"

namespace overlace::model {
namespace {

using base::error;
using base::Result;
using base::Status;

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kMaxHeaderBytes = size_t{1} << 20;
constexpr int64_t kMaxElements = int64_t{1} << 40;

/// Reads the Python literal of the header: one flat dictionary of strings, booleans and a tuple of integers.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, std::string_view source) : text_(text), source_(source) {}

  Result<NpyHeader> parse() {
    NpyHeader header;
    bool has_descr = false, has_order = false, has_shape = false;
    if (!take('{')) return wrong("'{'");
    while (!take('}')) {
      std::string key;
      if (!string(&key)) return wrong("a key in quotes");
      if (!take(':')) return wrong("':'");
      bool* seen = key == "descr" ? &has_descr : key == "fortran_order" ? &has_order : &has_shape;
      if (key != "descr" && key != "fortran_order" && key != "shape")
        return error(Errc::corrupt, "{}: header key '{}', wanted descr, fortran_order, shape", source_, key);
      if (*seen) return error(Errc::corrupt, "{}: header key '{}' occurs twice", source_, key);
      *seen = true;
      if (key == "descr" && !string(&header.descr)) return wrong("a dtype in quotes");
      if (key == "fortran_order" && !boolean(&header.fortran_order)) return wrong("True or False");
      if (key == "shape" && !tuple(&header.shape)) return wrong("a tuple of sizes");
      if (!take(',') && peek() != '}') return wrong("',' or '}'");
    }
    if (peek() != '\0' || at_ < text_.size()) return wrong("the header's end");
    for (const auto& [seen, key] : {std::pair{has_descr, "descr"}, {has_order, "fortran_order"}, {has_shape, "shape"}})
      if (!seen) return error(Errc::corrupt, "{}: header key '{}' is missing", source_, key);
    return header;
  }

 private:
  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  char peek() {
    skip_blanks();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }
  bool word(std::string_view expected) {
    skip_blanks();
    if (!text_.substr(at_).starts_with(expected)) return false;
    at_ += expected.size();
    return true;
  }
  bool string(std::string* out) {
    const char quote = peek();
    if (quote != '\'' && quote != '"') return false;
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos || end - at_ > 64) return false;
    *out = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return true;
  }
  bool boolean(bool* out) {
    *out = word("True");
    return *out || word("False");
  }
  bool tuple(std::vector<int64_t>* out) {
    if (!take('(')) return false;
    while (!take(')')) {
      skip_blanks();
      int64_t value = 0;
      const char* first = text_.data() + at_;
      const auto [end, failure] = std::from_chars(first, text_.data() + text_.size(), value);
      if (failure != std::errc() || out->size() >= 8) return false;
      at_ += static_cast<size_t>(end - first);
      out->push_back(value);
      if (!take(',') && peek() != ')') return false;
    }
    return true;
  }
  Status wrong(std::string_view wanted) {
    const std::string got(text_.substr(std::min(at_, text_.size()), 16));
    return error(Errc::corrupt, "{}: header at character {}: \"{}\", wanted {}", source_, at_, got, wanted);
  }

  std::string_view text_, source_;
  size_t at_ = 0;
};

struct Preamble {
  size_t data_offset = 0;
  std::string_view header;
};

Result<Preamble> read_preamble(const MappedFile& file) {
  const std::string_view bytes(file.data(), file.size());
  if (bytes.size() < 10)
    return error(Errc::corrupt, "{}: {} bytes, wanted at least 10 for an npy header", file.path(), bytes.size());
  if (!bytes.starts_with(kMagic)) return error(Errc::corrupt, "{}: offset 0: wanted the npy magic", file.path());
  const int major = static_cast<unsigned char>(bytes[6]);
  if (major != 1 && major != 2)
    return error(Errc::not_supported, "{}: offset 6: npy version {}, wanted 1 or 2", file.path(), major);
  const size_t length_bytes = major == 1 ? 2 : 4;
  if (bytes.size() < 8 + length_bytes)
    return error(Errc::corrupt, "{}: {} bytes, wanted at least 12 for an npy header", file.path(), bytes.size());
  size_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i) length |= size_t{static_cast<unsigned char>(bytes[8 + i])} << (8 * i);
  if (length > kMaxHeaderBytes || length > bytes.size() - 8 - length_bytes)
    return error(Errc::corrupt, "{}: offset 8: header length {}, wanted at most {} of {} bytes", file.path(), length,
                 std::min(kMaxHeaderBytes, bytes.size() - 8 - length_bytes), bytes.size());
  return Preamble{8 + length_bytes + length, bytes.substr(8 + length_bytes, length)};
}

std::optional<DType> dtype_of(std::string_view descr) {
  if (descr == "<f4") return DType::fp32;
  if (descr == "<f2") return DType::fp16;
  if (descr == "<f8") return DType::fp64;
  return {};
}

}  // namespace

Result<NpyHeader> parse_npy_header(std::string_view text, std::string_view source) {
  return HeaderParser(text, source).parse();
}

Result<NpyMatrix> read_npy(const std::string& path) {
  auto opened = MappedFile::open(path);
  if (!opened.ok()) return opened.status();
  const MappedFile& file = **opened;
  auto preamble = read_preamble(file);
  if (!preamble.ok()) return preamble.status();
  auto header = parse_npy_header(preamble->header, path);
  if (!header.ok()) return header.status();
  const auto dtype = dtype_of(header->descr);
  if (!dtype) return error(Errc::not_supported, "{}: dtype '{}', wanted '<f4', '<f2' or '<f8'", path, header->descr);
  if (header->fortran_order)
    return error(Errc::not_supported, "{}: fortran_order is True, wanted False (C order)", path);
  if (header->shape.size() != 2)
    return error(Errc::invalid_argument, "{}: {} dimensions, wanted 2 (tokens, hidden)", path, header->shape.size());
  NpyMatrix matrix{header->shape[0], header->shape[1], {}};
  if (matrix.rows < 0 || matrix.cols < 0 || (matrix.cols > 0 && matrix.rows > kMaxElements / matrix.cols))
    return error(Errc::corrupt, "{}: shape ({}, {}), wanted sizes >= 0 of at most {} elements", path, matrix.rows,
                 matrix.cols, kMaxElements);
  const size_t wanted = static_cast<size_t>(matrix.rows * matrix.cols) * dtype_bytes(*dtype);
  if (file.size() - preamble->data_offset != wanted)
    return error(Errc::corrupt, "{}: {} bytes of data after offset {}, wanted {} for shape ({}, {})", path,
                 file.size() - preamble->data_offset, preamble->data_offset, wanted, matrix.rows, matrix.cols);
  matrix.values.resize(static_cast<size_t>(matrix.rows * matrix.cols));
  base::convert_to_float(file.data() + preamble->data_offset, *dtype, matrix.values.data(), matrix.rows * matrix.cols);
  for (size_t i = 0; i < matrix.values.size(); ++i)
    if (!std::isfinite(matrix.values[i]))
      return error(Errc::corrupt, "{}: element ({}, {}) is {}, wanted a finite number", path,
                   i / static_cast<size_t>(matrix.cols), i % static_cast<size_t>(matrix.cols), matrix.values[i]);
  return matrix;
}

Status write_npy(const std::string& path, int64_t rows, int64_t cols, const float* values) {
  std::string header = base::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, cols);
  header.append(64 - (10 + header.size() + 1) % 64, ' ');  // data starts at a multiple of 64 bytes
  header += '\n';
  std::string bytes(kMagic);
  bytes += {'\x01', '\x00', static_cast<char>(header.size() & 0xFF), static_cast<char>(header.size() >> 8)};
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(values), static_cast<size_t>(rows * cols) * sizeof(float));
  return base::write_file(path, bytes);
}

}  // namespace overlace::model
