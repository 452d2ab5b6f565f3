#include "src/base/npy.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

namespace overlace::base {
namespace {

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

Result<Preamble> read_preamble(std::string_view bytes, std::string_view source) {
  if (bytes.size() < 10)
    return error(Errc::corrupt, "{}: {} bytes, wanted at least 10 for an npy header", source, bytes.size());
  if (!bytes.starts_with(kMagic)) return error(Errc::corrupt, "{}: offset 0: wanted the npy magic", source);
  const int major = static_cast<unsigned char>(bytes[6]);
  if (major != 1 && major != 2)
    return error(Errc::not_supported, "{}: offset 6: npy version {}, wanted 1 or 2", source, major);
  const size_t length_bytes = major == 1 ? 2 : 4;
  if (bytes.size() < 8 + length_bytes)
    return error(Errc::corrupt, "{}: {} bytes, wanted at least 12 for an npy header", source, bytes.size());
  size_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i) length |= size_t{static_cast<unsigned char>(bytes[8 + i])} << (8 * i);
  if (length > kMaxHeaderBytes || length > bytes.size() - 8 - length_bytes)
    return error(Errc::corrupt, "{}: offset 8: header length {}, wanted at most {} of {} bytes", source, length,
                 std::min(kMaxHeaderBytes, bytes.size() - 8 - length_bytes), bytes.size());
  return Preamble{8 + length_bytes + length, bytes.substr(8 + length_bytes, length)};
}

struct Named {
  std::string_view descr;
  DType dtype;
};
/// NOTE: numpy has no bf16, whose bits are kept as 16-bit words; its booleans are bytes.
constexpr Named kTypes[] = {{"<f8", DType::fp64}, {"<f4", DType::fp32}, {"<f2", DType::fp16},
                            {"<u2", DType::bf16}, {"<i8", DType::i64},  {"<i4", DType::i32},
                            {"|i1", DType::i8},   {"|u1", DType::u8},   {"|b1", DType::u8}};

std::string descr_of(DType dtype) {
  for (const Named& type : kTypes)
    if (type.dtype == dtype) return std::string(type.descr);
  return "|u1";  // types of one byte that numpy does not have
}

}  // namespace

Result<NpyHeader> parse_npy_header(std::string_view text, std::string_view source) {
  return HeaderParser(text, source).parse();
}

std::string NpyArray::shape_text() const {
  std::string text = "(";
  for (const int64_t size : shape) text += (text.size() > 1 ? ", " : "") + format("{}", size);
  return text + (shape.size() == 1 ? ",)" : ")");
}

Result<NpyArray> parse_npy(std::string_view bytes, std::string_view source) {
  const auto preamble = read_preamble(bytes, source);
  if (!preamble.ok()) return preamble.status();
  auto header = parse_npy_header(preamble->header, source);
  if (!header.ok()) return header.status();
  NpyArray array;
  const auto* type =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Named& t) { return t.descr == header->descr; });
  if (type == std::end(kTypes)) {
    std::string wanted;
    for (const Named& t : kTypes) wanted += format("{}'{}'", wanted.empty() ? "" : ", ", t.descr);
    return error(Errc::not_supported, "{}: dtype '{}'{}, wanted one of {}", source, header->descr,
                 header->descr == "|O"            ? " (pickled objects)"
                 : header->descr.starts_with('>') ? " (big-endian)"
                                                  : "",
                 wanted);
  }
  if (header->fortran_order)
    return error(Errc::not_supported, "{}: fortran_order is True, wanted False (C order)", source);
  array.dtype = type->dtype;
  array.shape = std::move(header->shape);
  array.data_offset = static_cast<int64_t>(preamble->data_offset);
  array.elements = 1;
  for (const int64_t size : array.shape) {
    if (size < 0 || (size > 0 && array.elements > kMaxElements / size))
      return error(Errc::corrupt, "{}: shape {}, wanted sizes >= 0 of at most {} elements", source, array.shape_text(),
                   kMaxElements);
    array.elements *= size;
  }
  return array;
}

Result<NpyFile> NpyFile::open(const std::string& path) {
  auto mapped = MappedFile::open(path);
  if (!mapped.ok()) return mapped.status();
  NpyFile file;
  file.file_ = std::move(*mapped);
  auto array = parse_npy({file.file_->data(), file.file_->size()}, path);
  if (!array.ok()) return array.status();
  const uint64_t after = file.file_->size() - static_cast<uint64_t>(array->data_offset);
  if (after != static_cast<uint64_t>(array->bytes()))
    return error(Errc::corrupt, "{}: {} bytes of data after offset {}, wanted {} for shape {}", path, after,
                 array->data_offset, array->bytes(), array->shape_text());
  file.array_ = std::move(*array);
  return file;
}

std::string npy_header(DType dtype, const std::vector<int64_t>& shape, size_t multiple) {
  NpyArray array;
  array.shape = shape;
  std::string text =
      format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", descr_of(dtype), array.shape_text());
  const size_t used = kMagic.size() + 4 + text.size() + 1;
  text.append((multiple - used % multiple) % multiple, ' ');
  text += '\n';
  std::string bytes(kMagic);
  bytes += {'\x01', '\x00', static_cast<char>(text.size() & 0xFF), static_cast<char>(text.size() >> 8)};
  return bytes + text;
}

}  // namespace overlace::base
