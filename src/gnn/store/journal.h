// What a packer has done, so that one that was killed goes on where it was.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/base/status.h"

namespace overlace::gnn {

struct JournalRecord {
  uint32_t kind = 0;
  std::vector<std::byte> payload;
};

struct JournalContent {
  bool is_ours = false;  // begins with this digest; else the rest is empty
  std::vector<JournalRecord> records;
  size_t whole_bytes = 0;  // up to the last whole record
};
/// Reads any bytes: a torn or damaged record ends the content, as if it had never been written.
JournalContent parse_journal(std::span<const std::byte> bytes, const std::array<uint8_t, 16>& digest);

/// An append-only file; each record lies on the disk when append() returns.
class Journal {
 public:
  /// Goes on with a journal of the same digest, and begins anew for any other. io with path and reason.
  static base::Result<std::unique_ptr<Journal>> open(const std::string& path, const std::array<uint8_t, 16>& digest);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// Those of earlier runs.
  const std::vector<JournalRecord>& records() const { return records_; }
  base::Status append(uint32_t kind, std::span<const std::byte> payload);
  /// No record stands on the disk any more when this returns: for whoever is about to undo what they speak of.
  base::Status forget();

 private:
  Journal(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  base::Status write_at_end(std::span<const std::byte> bytes);

  std::string path_;
  int fd_;
  int64_t end_ = 0;
  std::vector<JournalRecord> records_;
  uint32_t next_ = 0;
};

}  // namespace overlace::gnn
