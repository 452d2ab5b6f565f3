#include "src/gnn/sample/trace.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "src/base/crc32c.h"

namespace overlace::gnn {
namespace {

static_assert(std::endian::native == std::endian::little, "trace files are written as they lie in memory");

constexpr std::array<char, 8> kMagic = {'O', 'V', 'L', 'T', 'R', 'A', 'C', 'E'};
constexpr std::array<char, 8> kEndMagic = {'O', 'V', 'L', 'T', 'R', 'E', 'N', 'D'};
constexpr uint32_t kVersion = 1;
constexpr size_t kPage = 4096, kAlignment = 64, kEntryWords = 3;

struct Head {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t hops = 0;
  std::array<uint8_t, 16> dataset{};
  int64_t num_vertices = 0, num_batches = 0, batch_size = 0;
  uint64_t seed = 0;
  uint32_t split = 0, epoch = 0, replace = 0, padding = 0;
  std::array<int32_t, Sampler::kMaxHops> fanouts{};
  std::array<uint8_t, kPage - 152> zeros{};
  uint32_t more_zeros = 0;
  uint32_t crc = 0;  // of what stands before it
};
struct End {
  std::array<char, 8> magic = kEndMagic;
  uint64_t table_offset = 0, file_bytes = 0;
  uint32_t table_crc = 0, head_crc = 0;
  std::array<uint8_t, kAlignment - 36> zeros{};
  uint32_t crc = 0;
};
/// Before the arrays of a batch, in this order: reached, indptr, indices, inputs.
struct BatchHead {
  uint32_t reached = 0, indptr = 0, indices = 0, inputs = 0;
  uint64_t bytes() const { return sizeof(BatchHead) + 4 * (uint64_t{reached} + indptr + indices + inputs); }
};
static_assert(sizeof(Head) == kPage && sizeof(End) == kAlignment && sizeof(BatchHead) == 16);

template <class T>
std::span<const std::byte> bytes_of(const T& pod) {
  return std::as_bytes(std::span<const T, 1>(&pod, 1));
}
/// Checksum of a structure that ends with it.
template <class T>
uint32_t own_crc(const T& pod) {
  return base::crc32c(bytes_of(pod).first(sizeof(T) - sizeof(pod.crc)));
}

Head head_of(const TraceHeader& header) {
  Head head;
  head.hops = static_cast<uint32_t>(header.options.fanouts.size());
  head.dataset = header.dataset;
  head.num_vertices = header.num_vertices;
  head.num_batches = header.num_batches;
  head.batch_size = header.options.batch_size;
  head.seed = header.options.seed;
  head.split = static_cast<uint32_t>(header.epoch.split);
  head.epoch = header.epoch.epoch;
  head.replace = header.options.replace;
  std::copy(header.options.fanouts.begin(), header.options.fanouts.end(), head.fanouts.begin());
  head.crc = own_crc(head);
  return head;
}

TraceHeader header_of(const Head& head) {
  TraceHeader header;
  header.dataset = head.dataset;
  header.num_vertices = head.num_vertices;
  header.num_batches = head.num_batches;
  header.options = {.fanouts = {head.fanouts.begin(), head.fanouts.begin() + head.hops},
                    .batch_size = head.batch_size,
                    .seed = head.seed,
                    .replace = head.replace != 0};
  header.epoch = {static_cast<Split>(head.split), head.epoch};
  return header;
}

}  // namespace

std::string block_fault(const BatchView& batch, int64_t num_vertices) {
  if (batch.reached.empty() && (!batch.indptr.empty() || !batch.indices.empty())) return "edges, but no hops";
  if (!batch.reached.empty()) {
    const size_t hops = batch.reached.size() - 1;
    for (size_t i = 1; i <= hops; ++i)
      if (batch.reached[i] < batch.reached[i - 1])
        return base::format("reached[{}] is {}, wanted at least {}", i, batch.reached[i], batch.reached[i - 1]);
    if (hops == 0 || batch.reached[hops] != batch.inputs.size() ||
        batch.indptr.size() != size_t{batch.reached[hops - 1]} + 1)
      return base::format("{} hops, {} inputs and {} offsets do not belong together", hops, batch.inputs.size(),
                          batch.indptr.size());
    for (size_t i = 0; i + 1 < batch.indptr.size(); ++i)
      if (batch.indptr[i + 1] < batch.indptr[i]) return base::format("indptr falls at {}", i + 1);
    if (batch.indptr[0] != 0 || batch.indptr.back() != batch.indices.size())
      return base::format("indptr is from {} to {}, wanted 0 to {}", batch.indptr[0], batch.indptr.back(),
                          batch.indices.size());
    for (const uint32_t i : batch.indices)
      if (i >= batch.inputs.size()) return base::format("local id {}, wanted below {}", i, batch.inputs.size());
  }
  for (const uint32_t v : batch.inputs)
    if (v >= num_vertices) return base::format("vertex {}, wanted below {}", v, num_vertices);
  return "";
}

base::Status check_inputs(const InputTrace& trace) {
  std::vector<int64_t> last(static_cast<size_t>(trace.num_vertices()), -1);
  for (int64_t b = 0; b < trace.num_batches(); ++b) {
    const auto inputs = trace.inputs(b);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i] >= last.size())
        return base::invalid_argument("trace: input {} of batch {} is {}, wanted a vertex in [0, {})", i, b, inputs[i],
                                      last.size());
      if (std::exchange(last[inputs[i]], b) == b)
        return base::invalid_argument("trace: input {} of batch {} is {}, which is there already; wanted each once", i,
                                      b, inputs[i]);
    }
  }
  return {};
}

base::Status TraceWriter::put(std::span<const std::byte> bytes) {
  offset_ += bytes.size();
  return sink_->append(bytes);
}

base::Status TraceWriter::append(const SampledBatch& batch) {
  if (offset_ == 0) OVERLACE_TRY(put(bytes_of(head_of(header_))));
  const auto counted = [](const std::vector<uint32_t>& v) { return static_cast<uint32_t>(v.size()); };
  const BatchHead head{counted(batch.reached), counted(batch.indptr), counted(batch.indices), counted(batch.inputs)};
  const uint64_t begin = offset_;
  uint32_t crc = 0;
  OVERLACE_TRY(put(bytes_of(head)));
  crc = base::crc32c(bytes_of(head));
  for (const auto* array : {&batch.reached, &batch.indptr, &batch.indices, &batch.inputs}) {
    const auto bytes = std::as_bytes(std::span(*array));
    OVERLACE_TRY(put(bytes));
    crc = base::crc32c(bytes, crc);
  }
  table_.push_back({begin, offset_ - begin, crc});
  static constexpr std::array<std::byte, kAlignment> kZeros{};
  return put(std::span(kZeros).first((kAlignment - offset_ % kAlignment) % kAlignment));
}

base::Status TraceWriter::finish() {
  if (static_cast<int64_t>(table_.size()) != header_.num_batches)
    return base::invalid_argument("trace: {} batches were written, wanted {}", table_.size(), header_.num_batches);
  if (offset_ == 0) OVERLACE_TRY(put(bytes_of(head_of(header_))));
  End end;
  const auto table = std::as_bytes(std::span(table_));
  end.table_offset = offset_;
  end.file_bytes = offset_ + table.size() + sizeof(End);
  end.table_crc = base::crc32c(table);
  end.head_crc = head_of(header_).crc;
  end.crc = own_crc(end);
  OVERLACE_TRY(put(table));
  return put(bytes_of(end));
}

base::Result<TraceFile> TraceFile::open(std::span<const std::byte> bytes, std::string name) {
  const auto corrupt = [&](const std::string& why) { return base::error(Errc::corrupt, "{}: {}", name, why); };
  if (bytes.size() < sizeof(Head) + sizeof(End))
    return corrupt(base::format("{} bytes, a trace has at least {}", bytes.size(), sizeof(Head) + sizeof(End)));
  if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(uint64_t) != 0)
    return base::invalid_argument("{}: bytes at an odd address, wanted a multiple of {}", name, alignof(uint64_t));
  Head head;
  End end;
  std::memcpy(&head, bytes.data(), sizeof(Head));
  std::memcpy(&end, bytes.data() + bytes.size() - sizeof(End), sizeof(End));
  if (head.magic != kMagic) return corrupt("this is no trace");
  if (head.version != kVersion)
    return base::error(Errc::version_mismatch, "{}: format {} of traces, wanted {}", name, head.version, kVersion);
  if (head.crc != own_crc(head)) return corrupt("the checksum of the header is wrong");
  if (end.magic != kEndMagic || end.crc != own_crc(end) || end.head_crc != head.crc || end.file_bytes != bytes.size())
    return corrupt(base::format("the end of {} bytes is not that of this trace; was the file cut?", bytes.size()));

  // A file whose checksums are right may still be made by hand: sizes are not trusted.
  const uint64_t before_end = bytes.size() - sizeof(End), entry = kEntryWords * sizeof(uint64_t);
  if (head.hops < 1 || head.hops > Sampler::kMaxHops || head.num_vertices < 0 || head.batch_size < 1 ||
      head.split > static_cast<uint32_t>(Split::test) || head.num_batches < 0 ||
      head.num_vertices > std::numeric_limits<uint32_t>::max())
    return corrupt("a field of the header is out of range");
  if (end.table_offset < sizeof(Head) || end.table_offset > before_end || end.table_offset % kAlignment != 0 ||
      static_cast<uint64_t>(head.num_batches) > (before_end - end.table_offset) / entry ||
      static_cast<uint64_t>(head.num_batches) * entry != before_end - end.table_offset)
    return corrupt("the table of batches does not fit the file");
  const auto table = bytes.subspan(end.table_offset, before_end - end.table_offset);
  if (base::crc32c(table) != end.table_crc) return corrupt("the checksum of the table of batches is wrong");

  TraceFile file(bytes, name);
  file.header_ = header_of(head);
  file.table_ = {reinterpret_cast<const uint64_t*>(table.data()), table.size() / sizeof(uint64_t)};
  for (int64_t b = 0; b < head.num_batches; ++b) {
    const auto row = file.table_.subspan(static_cast<size_t>(b) * kEntryWords, kEntryWords);
    BatchHead lengths;
    if (row[0] % kAlignment != 0 || row[0] < sizeof(Head) || row[0] > end.table_offset || row[1] < sizeof(BatchHead) ||
        row[1] > end.table_offset - row[0])
      return corrupt(base::format("batch {} does not lie in the file", b));
    std::memcpy(&lengths, bytes.data() + row[0], sizeof(lengths));
    if (lengths.bytes() != row[1])
      return corrupt(base::format("batch {} has {} bytes, wanted {}", b, row[1], lengths.bytes()));
  }
  return file;
}

BatchView TraceFile::view(int64_t batch) const {
  const auto row = table_.subspan(static_cast<size_t>(batch) * kEntryWords, kEntryWords);
  BatchHead head;
  std::memcpy(&head, bytes_.data() + row[0], sizeof(head));
  const auto* words = reinterpret_cast<const uint32_t*>(bytes_.data() + row[0] + sizeof(head));
  BatchView out;
  const auto take = [&](uint32_t count) {
    const std::span<const uint32_t> part(words, count);
    words += count;
    return part;
  };
  out.reached = take(head.reached);
  out.indptr = take(head.indptr);
  out.indices = take(head.indices);
  out.inputs = take(head.inputs);
  return out;
}

base::Result<BatchView> TraceFile::read(int64_t batch) const {
  if (batch < 0 || batch >= num_batches())
    return base::invalid_argument("{}: batch {}, wanted one in [0, {})", name_, batch, num_batches());
  const auto row = table_.subspan(static_cast<size_t>(batch) * kEntryWords, kEntryWords);
  const uint32_t seen = base::crc32c(bytes_.subspan(row[0], row[1]));
  if (seen != row[2])
    return base::error(Errc::corrupt, "{}: checksum of batch {} at byte {} is {}, wanted {}", name_, batch, row[0],
                       seen, row[2]);
  const BatchView out = view(batch);
  if (out.reached.size() != header_.options.fanouts.size() + 1)
    return base::error(Errc::corrupt, "{}: batch {} has {} hops, wanted {}", name_, batch, out.reached.size(),
                       header_.options.fanouts.size() + 1);
  if (const std::string fault = block_fault(out, num_vertices()); !fault.empty())
    return base::error(Errc::corrupt, "{}: batch {}: {}", name_, batch, fault);
  return out;
}

base::Status TraceFile::verify() const {
  for (int64_t b = 0; b < num_batches(); ++b)
    if (auto batch = read(b); !batch.ok()) return batch.status();
  return {};
}

}  // namespace overlace::gnn
