// Protocol buffers by field number: what writing and reading traces of others needs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace overlace::base::protobuf {

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

/// A length, or a number of at most 10 bytes, lowest 7 bits first.
inline void append_varint(std::string* out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) *out += static_cast<char>(value | 0x80);
  *out += static_cast<char>(value);
}
/// False where `rest` ends within it, or it has more than 64 bits.
inline bool take_varint(std::string_view* rest, uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 64 && !rest->empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(rest->front());
    rest->remove_prefix(1);
    *value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

class Message {
 public:
  Message& varint(uint32_t number, uint64_t value) {
    tag(number, kVarint);
    raw_varint(value);
    return *this;
  }
  Message& fixed64(uint32_t number, uint64_t value) {
    tag(number, kFixed64);
    for (int shift = 0; shift < 64; shift += 8) bytes_ += static_cast<char>(value >> shift);
    return *this;
  }
  Message& bytes(uint32_t number, std::string_view value) {
    tag(number, kBytes);
    raw_varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(uint32_t number, const Message& value) { return bytes(number, value.bytes_); }
  const std::string& text() const { return bytes_; }

 private:
  void tag(uint32_t number, WireType type) { raw_varint(number << 3 | type); }
  void raw_varint(uint64_t value) { append_varint(&bytes_, value); }
  std::string bytes_;
};

/// One field at a time; every length is checked against what is left.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : rest_(bytes) {}

  bool at_end() const { return rest_.empty(); }
  uint32_t number() const { return number_; }
  bool is(uint32_t number, WireType type) const { return number_ == number && type_ == type; }
  uint64_t value() const { return value_; }
  std::string_view bytes() const { return bytes_; }

  /// Null, or what is wrong.
  const char* next() {
    uint64_t tag = 0;
    if (!read_varint(tag) || tag >> 3 == 0 || tag >> 3 > 0x1FFFFFFF) return "bad field tag";
    number_ = static_cast<uint32_t>(tag >> 3);
    type_ = static_cast<WireType>(tag & 7);
    switch (type_) {
      case kVarint:
        return read_varint(value_) ? nullptr : "bad varint";
      case kFixed64:
        return read_fixed(8) ? nullptr : "ends within a number";
      case kFixed32:
        return read_fixed(4) ? nullptr : "ends within a number";
      case kBytes: {
        uint64_t length = 0;
        if (!read_varint(length) || length > rest_.size()) return "length goes beyond the end";
        bytes_ = rest_.substr(0, length);
        rest_.remove_prefix(length);
        return nullptr;
      }
    }
    return "unknown wire type";
  }

 private:
  bool read_varint(uint64_t& value) { return take_varint(&rest_, &value); }
  bool read_fixed(size_t length) {
    if (rest_.size() < length) return false;
    value_ = 0;
    for (size_t i = 0; i < length; ++i)
      value_ |= static_cast<uint64_t>(static_cast<unsigned char>(rest_[i])) << (8 * i);
    rest_.remove_prefix(length);
    return true;
  }

  std::string_view rest_, bytes_;
  uint32_t number_ = 0;
  WireType type_ = kVarint;
  uint64_t value_ = 0;
};

}  // namespace overlace::base::protobuf
