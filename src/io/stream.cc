#include "src/io/stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/ceil_div_pod.h"

namespace overlace::io {

base::Result<Ring> Ring::make(int64_t slots, int64_t slot_bytes, std::span<std::byte> memory) {
  if (slots < 1 || slot_bytes < kPageBytes || slot_bytes % kPageBytes != 0 || slots > (int64_t{1} << 50) / slot_bytes)
    return base::invalid_argument("ring: {} slots of {} bytes, wanted at least one, of a multiple of {} bytes", slots,
                                  slot_bytes, kPageBytes);
  Ring ring;
  ring.slots_ = slots;
  ring.slot_bytes_ = slot_bytes;
  const auto bytes = static_cast<size_t>(slots * slot_bytes);
  if (!memory.empty()) {
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    if (memory.size() < bytes || address % static_cast<uintptr_t>(kPageBytes) != 0)
      return base::invalid_argument("ring: {} bytes of memory, {} behind a page's start; wanted {} from one on",
                                    memory.size(), address % static_cast<uintptr_t>(kPageBytes), bytes);
    ring.memory_ = memory.first(bytes);
    return ring;
  }
  base::Result<AlignedBuffer> own = AlignedBuffer::allocate(bytes);
  if (!own.ok()) return own.status();
  ring.own_ = std::move(own).value();
  ring.memory_ = {ring.own_.data(), bytes};
  return ring;
}

std::span<std::byte> Ring::slot(int64_t index) const {
  return memory_.subspan(static_cast<size_t>(index % slots_ * slot_bytes_), static_cast<size_t>(slot_bytes_));
}

base::Result<std::unique_ptr<StreamReader>> StreamReader::open(IoEngine* engine, std::shared_ptr<File> file,
                                                               int64_t offset, int64_t bytes,
                                                               const StreamOptions& options) {
  if (offset < 0 || bytes < 0)
    return base::invalid_argument("{}: {} bytes from offset {}, wanted both >= 0", file->path(), bytes, offset);
  base::Result<Ring> ring = Ring::make(options.ahead + 1, options.chunk_bytes);
  if (!ring.ok()) return ring.status();
  std::unique_ptr<StreamReader> reader(new StreamReader(engine, std::move(file), std::move(ring).value()));
  reader->offset_ = offset;
  reader->end_ = offset + bytes;
  // Chunks begin at multiples of a chunk, so that all but the first and last are whole pages.
  reader->first_ = offset - offset % options.chunk_bytes;
  reader->chunk_bytes_ = options.chunk_bytes;
  reader->num_chunks_ = bytes == 0 ? 0 : base::ceil_div(reader->end_ - reader->first_, options.chunk_bytes);
  reader->chunks_.resize(static_cast<size_t>(reader->ring_.slots()));
  OVERLACE_TRY(reader->ask());
  return reader;
}

StreamReader::~StreamReader() {
  // NOTE: the memory of the ring goes with this object, so what is under way has to end first, well or not.
  (void)engine_->settle();
}

base::Status StreamReader::ask() {
  // The slot given last stays until the next call.
  while (asked_ < num_chunks_ && asked_ < given_ + ring_.slots()) {
    Chunk& chunk = chunks_[static_cast<size_t>(asked_ % ring_.slots())];
    const int64_t begin = first_ + asked_ * chunk_bytes_;
    chunk = {begin, std::min(begin + chunk_bytes_, end_) - begin, false, {}};
    OVERLACE_TRY(engine_->read(file_, chunk.begin, chunk.bytes, ring_.slot(asked_), static_cast<uint64_t>(asked_)));
    ++asked_;
  }
  return {};
}

base::Result<std::span<const std::byte>> StreamReader::next() {
  OVERLACE_TRY(ask());
  if (given_ == num_chunks_) return std::span<const std::byte>();
  Chunk& wanted = chunks_[static_cast<size_t>(given_ % ring_.slots())];
  while (!wanted.is_done) {
    Completion completions[16];
    const base::Result<size_t> n = engine_->poll(completions);
    if (!n.ok()) return n.status();
    for (size_t i = 0; i < *n; ++i) {
      Chunk& chunk = chunks_[completions[i].tag % static_cast<uint64_t>(ring_.slots())];
      chunk.is_done = true;
      chunk.status = std::move(completions[i].status);
    }
  }
  OVERLACE_TRY(wanted.status);
  const std::span<const std::byte> slot = ring_.slot(given_++);
  const int64_t skipped = std::max<int64_t>(offset_ - wanted.begin, 0);
  return slot.subspan(static_cast<size_t>(skipped), static_cast<size_t>(wanted.bytes - skipped));
}

base::Result<std::unique_ptr<StreamWriter>> StreamWriter::open(IoEngine* engine, std::shared_ptr<File> file,
                                                               const StreamOptions& options) {
  base::Result<Ring> ring = Ring::make(options.ahead, options.chunk_bytes);
  if (!ring.ok()) return ring.status();
  std::unique_ptr<StreamWriter> writer(new StreamWriter(engine, std::move(file), std::move(ring).value()));
  writer->busy_.resize(static_cast<size_t>(options.ahead));
  return writer;
}

StreamWriter::~StreamWriter() { (void)engine_->settle(); }

base::Status StreamWriter::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    OVERLACE_TRY(make_room(false));
    const std::span<std::byte> slot = ring_.slot(index_);
    const size_t n = std::min(bytes.size(), slot.size() - static_cast<size_t>(filled_));
    std::memcpy(slot.data() + filled_, bytes.data(), n);
    filled_ += static_cast<int64_t>(n);
    bytes_ += static_cast<int64_t>(n);
    bytes = bytes.subspan(n);
    if (filled_ == static_cast<int64_t>(slot.size())) OVERLACE_TRY(flush());
  }
  return {};
}

base::Status StreamWriter::make_room(bool all) {
  OVERLACE_TRY(failure_);
  while (all ? engine_->pending() > 0 : busy_[static_cast<size_t>(index_ % ring_.slots())] != 0) {
    Completion completions[16];
    const base::Result<size_t> n = engine_->poll(completions);
    if (!n.ok()) return n.status();
    for (size_t i = 0; i < *n; ++i) {
      busy_[completions[i].tag] = 0;
      if (failure_.ok()) failure_ = std::move(completions[i].status);
    }
  }
  return failure_;
}

base::Status StreamWriter::flush() {
  const std::span<const std::byte> slot = ring_.slot(index_);
  const auto tag = static_cast<uint64_t>(index_ % ring_.slots());
  busy_[tag] = 1;
  OVERLACE_TRY(engine_->write(file_, written_, slot.first(static_cast<size_t>(filled_)), tag));
  written_ += filled_;
  filled_ = 0;
  ++index_;
  return {};
}

base::Status StreamWriter::finish() {
  OVERLACE_TRY(failure_);
  if (filled_ > 0) OVERLACE_TRY(flush());
  OVERLACE_TRY(make_room(true));
  OVERLACE_TRY(file_->resize(bytes_));
  return file_->sync();
}

}  // namespace overlace::io
