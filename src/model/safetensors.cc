#include "src/model/safetensors.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "src/base/half.h"
#include "src/base/json.h"

namespace overlace::model {
namespace {

using base::error;
using base::Json;
using base::Result;
using base::Status;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxDims = 8;
constexpr size_t kMaxIndexBytes = size_t{64} << 20;

struct StoredType {
  std::string_view name;
  uint64_t bytes;
  std::optional<DType> dtype;  // of those that weights may have
};
constexpr StoredType kStoredTypes[] = {
    {"F64", 8, DType::fp64}, {"F32", 4, DType::fp32}, {"F16", 2, DType::fp16}, {"BF16", 2, DType::bf16},
    {"I64", 8, {}},          {"U64", 8, {}},          {"I32", 4, {}},          {"U32", 4, {}},
    {"I16", 2, {}},          {"U16", 2, {}},          {"I8", 1, {}},           {"U8", 1, {}},
    {"BOOL", 1, {}},         {"F8_E4M3", 1, {}},      {"F8_E5M2", 1, {}},
};

const StoredType* stored_type(std::string_view name) {
  for (const StoredType& type : kStoredTypes)
    if (type.name == name) return &type;
  return nullptr;
}

std::string tuple_text(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + ")";
}

/// Checks one header entry against the file; `data` is where the tensors' bytes start.
class EntryReader {
 public:
  EntryReader(const std::string& path, const std::string& name, const Json& entry)
      : path_(path), name_(name), entry_(entry) {}

  Result<StoredTensor> read(uint64_t data, uint64_t size) const {
    if (!entry_.is_object()) return wrong("entry", entry_.dump(), "an object");
    StoredTensor tensor{name_, "", {}, 0, 0};
    const Json* dtype = entry_.find("dtype");
    if (dtype == nullptr || !dtype->is_string()) return wrong("dtype", text(dtype), "a string");
    tensor.dtype = dtype->as_string();
    const StoredType* type = stored_type(tensor.dtype);
    if (type == nullptr) return wrong("dtype", text(dtype), "a type of the safetensors format");
    const Json* shape = entry_.find("shape");
    if (shape == nullptr || !shape->is_array() || shape->as_array().size() > kMaxDims)
      return wrong("shape", text(shape), base::format("an array of at most {} sizes", kMaxDims));
    uint64_t bytes = type->bytes;
    for (const Json& dim : shape->as_array()) {
      if (!dim.is_int() || dim.as_int() < 0) return wrong("shape", text(shape), "integers >= 0");
      tensor.shape.push_back(dim.as_int());
      if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim.as_int()), &bytes))
        return wrong("shape", text(shape), "less than 2^64 bytes");
    }
    const Json* offsets = entry_.find("data_offsets");
    if (offsets == nullptr || !offsets->is_array() || offsets->as_array().size() != 2 ||
        !offsets->as_array()[0].is_int() || !offsets->as_array()[1].is_int() || offsets->as_array()[0].as_int() < 0)
      return wrong("data_offsets", text(offsets), "two integers >= 0");
    const int64_t begin = offsets->as_array()[0].as_int(), end = offsets->as_array()[1].as_int();
    if (end < begin || static_cast<uint64_t>(end) > size - data)
      return wrong("data_offsets", text(offsets),
                   base::format("begin <= end <= {}, the file's bytes of data", size - data));
    if (static_cast<uint64_t>(end - begin) != bytes)
      return wrong("data_offsets", base::format("{}, {} bytes", text(offsets), end - begin),
                   base::format("{} bytes for {} {}", bytes, tensor.dtype, tuple_text(tensor.shape)));
    tensor.begin = data + static_cast<uint64_t>(begin);
    tensor.end = data + static_cast<uint64_t>(end);
    return tensor;
  }

 private:
  static std::string text(const Json* value) { return value == nullptr ? "missing" : value->dump().substr(0, 80); }
  Status wrong(std::string_view field, std::string_view got, std::string_view wanted) const {
    return error(Errc::corrupt, "{}: tensor \"{}\": {} is {}, wanted {}", path_, name_.substr(0, 128), field, got,
                 wanted);
  }
  const std::string& path_;
  const std::string& name_;
  const Json& entry_;
};

/// Neither overlap nor hole: every byte of data belongs to exactly one tensor.
Status check_cover(std::vector<const StoredTensor*> tensors, const std::string& path, uint64_t data, uint64_t size) {
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor* a, const StoredTensor* b) {
    return std::tie(a->begin, a->end) < std::tie(b->begin, b->end);
  });
  uint64_t at = data;
  for (const StoredTensor* tensor : tensors) {
    if (tensor->begin != at)
      return error(Errc::corrupt, "{}: tensor \"{}\" starts at offset {}, wanted {} ({})", path, tensor->name,
                   tensor->begin, at, tensor->begin < at ? "it overlaps another tensor" : "a hole before it");
    at = tensor->end;
  }
  if (at != size)
    return error(Errc::corrupt, "{}: the tensors end at offset {}, wanted the file's size {}", path, at, size);
  return {};
}

Status not_finite(const std::string& path, std::string_view name, int64_t row, int64_t col, double value, DType dtype) {
  return error(Errc::corrupt, "{}: tensor \"{}\": element ({}, {}) is {}, wanted a finite {} number", path, name, row,
               col, value, dtype_name(dtype));
}

bool is_finite(double value, DType dtype) {
  char rounded[8];
  base::store_element(rounded, dtype, 0, value);
  return std::isfinite(base::load_element(rounded, dtype, 0));
}

struct Source {
  const char* data;  // the box's first element
  DType dtype;
  int64_t pitch;  // elements
};

/// Whether a number of the words has all bits of `exponent`: is infinite or no number.
template <class Word>
bool has_exponent(const char* data, int64_t count, Word exponent) {
  unsigned found = 0;  // added, not tested: so it is vectors that are compared
  for (int64_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, data + i * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
    found |= static_cast<unsigned>((word & exponent) == exponent);
  }
  return found != 0;
}

/// Whether all numbers that need no rounding are finite; false where that is not known so fast.
bool is_plain(const char* data, DType dtype, int64_t count) {
  switch (dtype) {
    case DType::fp32:
      return !has_exponent<uint32_t>(data, count, 0x7F800000u);
    case DType::bf16:
      return !has_exponent<uint16_t>(data, count, 0x7F80);
    case DType::fp16:
      return !has_exponent<uint16_t>(data, count, 0x7C00);
    default:
      return false;
  }
}

/// First element of the box's row that is not finite after rounding, or -1.
int64_t copy_row(const Source& source, int64_t row, const StoredBox& box, DType dtype, std::vector<float>& scratch,
                 char* out) {
  const auto element = static_cast<int64_t>(dtype_bytes(source.dtype));
  const char* first = source.data + row * source.pitch * element;
  if (source.dtype == dtype && is_plain(first, dtype, box.cols)) {
    std::memcpy(out, first, static_cast<size_t>(box.cols * element));
    return -1;
  }
  if (source.dtype == DType::fp64) {  // once through double, so that it rounds once
    for (int64_t j = 0; j < box.cols; ++j) {
      const double value = base::load_element(first, source.dtype, j);
      if (!is_finite(value, dtype)) return j;
      base::store_element(out, dtype, j, value);
    }
    return -1;
  }
  base::convert_to_float(first, source.dtype, scratch.data(), box.cols);
  base::convert_from_float(scratch.data(), out, dtype, box.cols);
  base::convert_to_float(out, dtype, scratch.data(), box.cols);
  for (int64_t j = 0; j < box.cols; ++j)
    if (!std::isfinite(scratch[static_cast<size_t>(j)])) return j;
  return -1;
}

/// Rows that are transposed together: so many elements of a column are a cache line or two.
constexpr int64_t kBlockRows = 16;

template <class Word>
void transpose_words(const char* from, int64_t rows, int64_t cols, char* to, int64_t pitch) {
  constexpr int64_t kBytes = sizeof(Word);
  for (int64_t j = 0; j < cols; ++j)
    for (int64_t i = 0; i < rows; ++i)
      std::memcpy(to + (j * pitch + i) * kBytes, from + (i * cols + j) * kBytes, sizeof(Word));
}

/// Element (i, j) of `from` goes to j * pitch + i of `to`.
void transpose(const char* from, int64_t rows, int64_t cols, int64_t element, char* to, int64_t pitch) {
  const auto words = element == 8   ? transpose_words<uint64_t>
                     : element == 4 ? transpose_words<uint32_t>
                     : element == 2 ? transpose_words<uint16_t>
                                    : transpose_words<uint8_t>;
  words(from, rows, cols, to, pitch);
}

}  // namespace

std::string StoredTensor::shape_text() const { return tuple_text(shape); }

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  auto mapped = base::MappedFile::open(path);
  if (!mapped.ok()) return mapped.status();
  SafetensorsFile result;
  result.file_ = *mapped;
  const uint64_t size = result.file_->size();
  if (size < kLengthBytes)
    return error(Errc::corrupt, "{}: {} bytes, wanted at least 8 for the header's length", path, size);
  uint64_t length = 0;
  for (uint64_t i = 0; i < kLengthBytes; ++i)
    length |= uint64_t{static_cast<unsigned char>(result.file_->data()[i])} << (8 * i);
  if (length > kMaxHeaderBytes || length > size - kLengthBytes)
    return error(Errc::corrupt, "{}: offset 0: header length {}, wanted at most {}", path, length,
                 std::min(kMaxHeaderBytes, size - kLengthBytes));
  auto header = Json::parse(std::string_view(result.file_->data() + kLengthBytes, length), path);
  if (!header.ok()) return header.status();
  if (!header->is_object())
    return error(Errc::corrupt, "{}: the header is {}, wanted an object", path, header->type_name());
  const uint64_t data = kLengthBytes + length;
  std::vector<const StoredTensor*> all;
  for (const auto& [name, entry] : header->as_object()) {
    if (name == "__metadata__") continue;
    auto tensor = EntryReader(path, name, entry).read(data, size);
    if (!tensor.ok()) return tensor.status();
    all.push_back(&result.tensors_.emplace(name, std::move(*tensor)).first->second);
  }
  OVERLACE_TRY(check_cover(std::move(all), path, data, size));
  return result;
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Result<Checkpoint> Checkpoint::open(const std::string& directory) {
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  const std::string index = directory + "/model.safetensors.index.json", single = directory + "/model.safetensors";
  struct stat info {};
  if (::stat(directory.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))
    return error(Errc::io, "checkpoint {}: not a directory, wanted one with model.safetensors", directory);
  if (::stat(index.c_str(), &info) != 0) {
    checkpoint.source_ = single;
    if (::stat(single.c_str(), &info) != 0)
      return error(Errc::io, "checkpoint {}: neither model.safetensors nor model.safetensors.index.json is there",
                   directory);
    auto file = SafetensorsFile::open(single);
    if (!file.ok()) return file.status();
    checkpoint.open_.emplace("", std::move(*file));
    return checkpoint;
  }
  checkpoint.source_ = index;
  auto mapped = base::MappedFile::open(index);
  if (!mapped.ok()) return mapped.status();
  const base::MappedFile& text = **mapped;
  if (text.size() > kMaxIndexBytes)
    return error(Errc::corrupt, "{}: {} bytes, wanted at most {}", index, text.size(), kMaxIndexBytes);
  auto json = Json::parse(std::string_view(text.data(), text.size()), index);
  if (!json.ok()) return json.status();
  const Json* map = json->find("weight_map");
  if (map == nullptr || !map->is_object() || map->as_object().empty())
    return error(Errc::corrupt, "{}: key \"weight_map\" is {}, wanted an object of tensor and file names", index,
                 map == nullptr     ? "missing"
                 : map->is_object() ? "empty"
                                    : map->type_name());
  for (const auto& [name, file] : map->as_object()) {
    // A path would let an index reach files outside its directory.
    if (!file.is_string() || file.as_string().empty() || file.as_string().front() == '.' ||
        file.as_string().find('/') != std::string::npos || file.as_string().find('\0') != std::string::npos)
      return error(Errc::corrupt, "{}: file of tensor \"{}\" is {}, wanted a plain file name", index, name,
                   file.dump().substr(0, 80));
    checkpoint.files_.emplace(name, file.as_string());
  }
  return checkpoint;
}

bool Checkpoint::has(std::string_view name) const {
  if (!files_.empty()) return files_.find(name) != files_.end();
  return open_.begin()->second.find(name) != nullptr;
}

Result<const SafetensorsFile*> Checkpoint::file_of(std::string_view name) {
  std::string file;
  if (!files_.empty()) {
    const auto found = files_.find(name);
    if (found == files_.end()) return error(Errc::corrupt, "{}: tensor \"{}\" is missing", source_, name);
    file = found->second;
  }
  auto opened = open_.find(file);
  if (opened == open_.end()) {
    auto result = SafetensorsFile::open(directory_ + "/" + file);
    if (!result.ok()) return result.status();
    opened = open_.emplace(file, std::move(*result)).first;
  }
  return &opened->second;
}

Result<Checkpoint::Found> Checkpoint::find(std::string_view name, const std::vector<int64_t>& shape) {
  auto file = file_of(name);
  if (!file.ok()) return file.status();
  const std::string& path = (*file)->path();
  const StoredTensor* tensor = (*file)->find(name);
  if (tensor == nullptr) return error(Errc::corrupt, "{}: tensor \"{}\" is missing", path, name);
  if (tensor->shape != shape)
    return error(Errc::corrupt, "{}: tensor \"{}\" has shape {}, wanted {}", path, name, tensor->shape_text(),
                 tuple_text(shape));
  const StoredType* type = stored_type(tensor->dtype);
  if (!type->dtype)
    return error(Errc::not_supported, "{}: tensor \"{}\" has dtype {}, supported: F64, F32, F16, BF16", path, name,
                 tensor->dtype);
  return Found{*file, tensor, *type->dtype};
}

/// Elements of the tensor before the box.
int64_t first_element(const std::vector<int64_t>& shape, const StoredBox& box) {
  return box.row * shape.back() + box.col;
}

Result<StoredRange> Checkpoint::range(std::string_view name, const std::vector<int64_t>& shape, const StoredBox& box) {
  const auto found = find(name, shape);
  if (!found.ok()) return found.status();
  const auto element = static_cast<int64_t>(dtype_bytes(found->dtype));
  const int64_t elements = box.rows == 0 || box.cols == 0 ? 0 : (box.rows - 1) * shape.back() + box.cols;
  return StoredRange{found->file->path(),
                     static_cast<int64_t>(found->tensor->begin) + first_element(shape, box) * element,
                     elements * element};
}

Status Checkpoint::read(std::string_view name, const std::vector<int64_t>& shape, const StoredBox& box, DType dtype,
                        void* out, const void* range) {
  const auto found = find(name, shape);
  if (!found.ok()) return found.status();
  const std::string& path = found->file->path();
  const int64_t skipped = first_element(shape, box) * static_cast<int64_t>(dtype_bytes(found->dtype));
  const char* first = range == nullptr ? found->file->bytes(*found->tensor) + skipped : static_cast<const char*>(range);
  const Source source{first, found->dtype, shape.back()};
  std::vector<float> scratch(static_cast<size_t>(box.cols));
  const auto element = static_cast<int64_t>(dtype_bytes(dtype));
  const int64_t row_bytes = box.cols * element;
  std::vector<char> block(box.transposed ? static_cast<size_t>(kBlockRows * row_bytes) : 0);
  auto* bytes = static_cast<char*>(out);
  for (int64_t i = 0; i < box.rows; ++i) {
    const int64_t in_block = i % kBlockRows;
    char* target = box.transposed ? block.data() + in_block * row_bytes : bytes + i * row_bytes;
    const int64_t bad = copy_row(source, i, box, dtype, scratch, target);
    if (bad >= 0) {
      const int64_t at = i * source.pitch + bad;
      return not_finite(path, name, box.row + i, box.col + bad, base::load_element(source.data, source.dtype, at),
                        dtype);
    }
    if (!box.transposed || (in_block + 1 < kBlockRows && i + 1 < box.rows)) continue;
    transpose(block.data(), in_block + 1, box.cols, element, bytes + (i - in_block) * element, box.rows);
  }
  return {};
}

}  // namespace overlace::model
