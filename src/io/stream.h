// A file from one end to the other, with requests ahead of who reads or writes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/io/alignment.h"
#include "src/io/engine.h"

namespace overlace::io {

/// Equal slots, used in turn, of memory that the caller gives (pinned, for transfers to a device) or of its own.
class Ring {
 public:
  /// invalid_argument where `memory` is not aligned to a page or does not hold `slots` of `slot_bytes`, a multiple of
  /// one. An empty `memory`: the ring allocates.
  static base::Result<Ring> make(int64_t slots, int64_t slot_bytes, std::span<std::byte> memory = {});
  /// Slot of the index-th use; the same memory every slots() uses.
  std::span<std::byte> slot(int64_t index) const;
  int64_t slots() const { return slots_; }
  std::span<std::byte> memory() const { return memory_; }

 private:
  int64_t slots_ = 0, slot_bytes_ = 0;
  AlignedBuffer own_;
  std::span<std::byte> memory_;
};

struct StreamOptions {
  int64_t chunk_bytes = 1 << 20;  // of a request, a multiple of a page
  int64_t ahead = 4;              // chunks that are read before they are asked for, or not yet written
};

/// Reads [offset, offset + bytes) once, in order. Has the engine to itself while it lives.
class StreamReader {
 public:
  static base::Result<std::unique_ptr<StreamReader>> open(IoEngine* engine, std::shared_ptr<File> file, int64_t offset,
                                                          int64_t bytes, const StreamOptions& options = {});
  /// Waits for what is under way: its memory goes.
  ~StreamReader();
  /// The next bytes, at most a chunk; empty at the end. Valid until the next call.
  base::Result<std::span<const std::byte>> next();

 private:
  StreamReader(IoEngine* engine, std::shared_ptr<File> file, Ring ring)
      : engine_(engine), file_(std::move(file)), ring_(std::move(ring)) {}
  base::Status ask();
  struct Chunk {
    int64_t begin = 0, bytes = 0;
    bool is_done = false;
    base::Status status;
  };
  IoEngine* engine_;
  std::shared_ptr<File> file_;
  Ring ring_;
  int64_t offset_ = 0, end_ = 0, asked_ = 0, given_ = 0, first_ = 0, chunk_bytes_ = 0, num_chunks_ = 0;
  std::vector<Chunk> chunks_;  // by index modulo slots
};

/// Writes a file from its start, in order. Has the engine to itself while it lives.
class StreamWriter {
 public:
  static base::Result<std::unique_ptr<StreamWriter>> open(IoEngine* engine, std::shared_ptr<File> file,
                                                          const StreamOptions& options = {});
  ~StreamWriter();
  /// Copies; waits where all slots are under way.
  base::Status append(std::span<const std::byte> bytes);
  /// All is written and lies on the disk.
  base::Status finish();
  int64_t bytes() const { return bytes_; }

 private:
  StreamWriter(IoEngine* engine, std::shared_ptr<File> file, Ring ring)
      : engine_(engine), file_(std::move(file)), ring_(std::move(ring)) {}
  base::Status flush();
  /// Waits until the slot of index_ is free, or until all are.
  base::Status make_room(bool all);
  IoEngine* engine_;
  std::shared_ptr<File> file_;
  Ring ring_;
  int64_t bytes_ = 0, written_ = 0, filled_ = 0, index_ = 0;
  std::vector<char> busy_;  // by slot
  base::Status failure_;    // the first one: the file has a hole from then on
};

}  // namespace overlace::io
