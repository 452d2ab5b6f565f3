// What sampling leaves behind: the batches of an epoch, in memory or as the bytes of a file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/base/status.h"
#include "src/gnn/sample/sampler.h"

namespace overlace::gnn {

/// The batches of an epoch. Levels need their input rows only.
class InputTrace {
 public:
  virtual ~InputTrace() = default;
  virtual int64_t num_vertices() const = 0;
  virtual int64_t num_batches() const = 0;
  /// Vertex ids, each once, below num_vertices(). Valid as long as the trace.
  virtual std::span<const uint32_t> inputs(int64_t batch) const = 0;
  /// With its blocks, which may be empty where nobody asks for them.
  virtual BatchView batch(int64_t batch) const = 0;
};

/// Batches in memory.
class MemoryTrace final : public InputTrace {
 public:
  explicit MemoryTrace(int64_t num_vertices) : num_vertices_(num_vertices) {}
  /// A batch without blocks.
  void append(std::span<const uint32_t> inputs) {
    SampledBatch batch;
    batch.inputs.assign(inputs.begin(), inputs.end());
    append(std::move(batch));
  }
  void append(SampledBatch batch) { batches_.push_back(std::move(batch)); }

  int64_t num_vertices() const override { return num_vertices_; }
  int64_t num_batches() const override { return std::ssize(batches_); }
  std::span<const uint32_t> inputs(int64_t batch) const override { return batches_[static_cast<size_t>(batch)].inputs; }
  BatchView batch(int64_t batch) const override {
    const SampledBatch& b = batches_[static_cast<size_t>(batch)];
    return {b.inputs, b.reached, b.indptr, b.indices};
  }

 private:
  int64_t num_vertices_;
  std::vector<SampledBatch> batches_;
};

/// Each batch's ids lie below num_vertices(), none twice in a batch; invalid_argument names batch and position.
base::Status check_inputs(const InputTrace& trace);

/// What is wrong with the arrays of a batch, "" if nothing: lengths, offsets, ids out of range. A batch may have no
/// blocks.
std::string block_fault(const BatchView& batch, int64_t num_vertices);

/// What a trace was made of; stands at its head.
struct TraceHeader {
  std::array<uint8_t, 16> dataset{};  // digest of the dataset
  int64_t num_vertices = 0, num_batches = 0;
  SamplerOptions options;
  SampledEpoch epoch;
};

/// Where bytes go, one after the other.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual base::Status append(std::span<const std::byte> bytes) = 0;
};

/// Writes a trace: a page for the header, the batches at multiples of 64 bytes, a table of them, a footer. Only the
/// table is kept in memory. The bytes depend on header and batches alone.
class TraceWriter {
 public:
  TraceWriter(TraceHeader header, ByteSink* sink) : header_(std::move(header)), sink_(sink) {}
  /// Batches in their order.
  base::Status append(const SampledBatch& batch);
  /// After the last batch; invalid_argument if header.num_batches have not come.
  base::Status finish();

 private:
  base::Status put(std::span<const std::byte> bytes);

  TraceHeader header_;
  ByteSink* sink_;
  uint64_t offset_ = 0;
  std::vector<std::array<uint64_t, 3>> table_;  // offset, bytes, crc32c
};

/// Reads the bytes of a trace file, which must outlive it (a mapped file).
class TraceFile final : public InputTrace {
 public:
  /// Checks header, footer and table, no batch. `name` stands in messages. Errc::corrupt: cut, no trace, a field out of
  /// range, a wrong checksum; Errc::version_mismatch: written by another version of the format.
  static base::Result<TraceFile> open(std::span<const std::byte> bytes, std::string name);

  const TraceHeader& header() const { return header_; }
  /// Checks checksum and all indices of a batch. Errc::corrupt names the batch and what is wrong.
  base::Result<BatchView> read(int64_t batch) const;
  /// read() of each batch.
  base::Status verify() const;

  int64_t num_vertices() const override { return header_.num_vertices; }
  int64_t num_batches() const override { return header_.num_batches; }
  /// Not checked again: what verify() or read() has accepted.
  std::span<const uint32_t> inputs(int64_t batch) const override { return view(batch).inputs; }
  BatchView batch(int64_t batch) const override { return view(batch); }

 private:
  TraceFile(std::span<const std::byte> bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}
  BatchView view(int64_t batch) const;

  std::span<const std::byte> bytes_;
  std::string name_;
  TraceHeader header_;
  std::span<const uint64_t> table_;
};

}  // namespace overlace::gnn
