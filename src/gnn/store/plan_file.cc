#include "src/gnn/store/plan_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/crc32c.h"

namespace overlace::gnn {
namespace {

constexpr std::array<char, 8> kPlanMagic = {'O', 'V', 'L', 'P', 'L', 'A', 'N', 'S'};
constexpr uint32_t kVersion = 1;
constexpr size_t kArrays = 6;

struct PlanHead {
  std::array<char, 8> magic = kPlanMagic;
  uint32_t version = kVersion, crc = 0;  // of all that follows
  Generation generation{};
  int64_t num_vertices = 0, row_bytes = 0, depth = 0, policy = 0, order = 0, order_batches = 0;
  int64_t segment_batches = 0, disk_segment_batches = 0, page_rows = 0, page_bytes = 0;
  int64_t max_ring_rows = 0, most_rows = 0, most_pages = 0, most_block_bytes = 0;
  std::array<int64_t, 3> file_bytes{};
  int64_t hot_sum = 0;
  std::array<int64_t, kArrays> counts{};  // gpu, cpu, extents, restores, first pages, page sums
  int64_t epoch_batches = 0;              // 0: all batches are of one sampled epoch
};
static_assert(sizeof(PlanHead) == 32 + 8 * 18 + 8 * (kArrays + 1));
constexpr size_t kSummed = 16;  // what stands before the checksum's bytes

template <class T>
void put(std::vector<std::byte>* out, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  out->insert(out->end(), bytes.begin(), bytes.end());
  out->resize((out->size() + 7) / 8 * 8);
}

/// False where the bytes do not suffice.
template <class T>
bool take(std::span<const std::byte>* bytes, int64_t count, std::vector<T>* out) {
  if (count < 0 || static_cast<uint64_t>(count) > bytes->size() / sizeof(T)) return false;
  const size_t used = static_cast<size_t>(count) * sizeof(T), padded = (used + 7) / 8 * 8;
  if (padded > bytes->size()) return false;
  out->resize(static_cast<size_t>(count));
  if (used > 0) std::memcpy(out->data(), bytes->data(), used);
  *bytes = bytes->subspan(padded);
  return true;
}

std::string places_fault(const char* what, const std::vector<ExtentPlace>& places, int64_t file_bytes) {
  for (size_t i = 0; i < places.size(); ++i) {
    const auto& [offset, bytes] = places[i];
    if (offset < 0 || bytes < 0 || offset % kExtentPage != 0 || bytes % kExtentPage != 0 || offset > file_bytes ||
        bytes > file_bytes - offset)
      return base::format("{} {} has {} bytes at {}, of {}", what, i, bytes, offset, file_bytes);
  }
  return "";
}

int64_t most_bytes(const std::vector<ExtentPlace>& places) {
  int64_t most = 0;
  for (const ExtentPlace& place : places) most = std::max(most, place.bytes);
  return most;
}

bool fits(int64_t rows, int64_t row_bytes) { return rows >= 0 && rows <= (int64_t{1} << 60) / row_bytes; }

/// "" or what does not belong together.
std::string plan_fault(const PackPlan& p) {
  if (p.num_vertices < 1 || p.num_vertices > int64_t{0xffffffff} || p.row_bytes < 1 ||
      !fits(p.num_vertices, p.row_bytes))
    return base::format("{} vertices of {} bytes", p.num_vertices, p.row_bytes);
  if (p.depth < 0 || p.depth > 64) return base::format("depth is {}", p.depth);
  if (p.policy > CachePolicy::belady || p.order.order > BatchOrder::shuffle) return "an unknown policy or order";
  const int64_t nb = p.num_batches();
  if (p.segment_batches < 1 || p.order.segment_batches < 0 || p.disk_segment_batches < 0)
    return base::format("segments of {} batches", p.segment_batches);
  if (p.order.order == BatchOrder::segments && p.order.segment_batches != p.segment_batches)
    return base::format("segments of {} and of {} batches", p.order.segment_batches, p.segment_batches);
  if (p.order.order != BatchOrder::segments && p.segment_batches != std::max<int64_t>(nb, 1))
    return base::format("segments of {} batches, of {}", p.segment_batches, nb);
  if (p.epoch_batches < 1 || nb % p.epoch_batches != 0)
    return base::format("{} batches in sampled epochs of {}", nb, p.epoch_batches);
  if (std::ssize(p.restores) != p.segments().count())
    return base::format("{} restores for {} batches in segments of {}", p.restores.size(), nb, p.segment_batches);
  if (p.page.rows < 1 || p.page.bytes < kExtentPage || p.page.bytes % kExtentPage != 0 ||
      !fits(p.page.rows, p.row_bytes) || p.page.rows * p.row_bytes > p.page.bytes)
    return base::format("pages of {} rows and {} bytes", p.page.rows, p.page.bytes);
  const int64_t pages = std::ssize(p.page_sums);
  const int64_t segments = p.disk_segment_batches == 0 ? 0 : (nb - 1) / p.disk_segment_batches + 1;
  if (std::ssize(p.first_page) != segments + 1 || p.first_page.front() != 0 || p.first_page.back() != pages ||
      !std::is_sorted(p.first_page.begin(), p.first_page.end()))
    return base::format("{} segments of the disk cache with {} pages", std::ssize(p.first_page) - 1, pages);
  if (!fits(pages, p.page.bytes) || p.file_bytes[1] != pages * p.page.bytes)
    return base::format("{} bytes of disk cache for {} pages", p.file_bytes[1], pages);
  if (p.file_bytes[2] != (std::ssize(p.start.gpu) + std::ssize(p.start.cpu)) * p.row_bytes)
    return base::format("{} bytes of hot rows", p.file_bytes[2]);
  if (!fits(p.max_ring_rows, p.row_bytes) || !fits(p.most_rows, p.row_bytes) || !fits(p.most_pages, p.page.bytes) ||
      p.most_rows > p.num_vertices || p.most_pages > pages || p.most_block_bytes < 0 ||
      p.most_block_bytes > p.largest_extent())
    return base::format("batches of {} rows and {} pages", p.most_rows, p.most_pages);
  const std::vector<uint32_t> hot = p.hot_rows();
  for (size_t i = 0; i < hot.size(); ++i)
    if (hot[i] >= p.num_vertices || (i > 0 && hot[i] == hot[i - 1])) return base::format("cached row {}", hot[i]);
  if (std::string fault = places_fault("extent", p.extents, p.file_bytes[0]); !fault.empty()) return fault;
  return places_fault("restore", p.restores, p.file_bytes[0]);
}

}  // namespace

std::vector<uint32_t> PackPlan::hot_rows() const {
  std::vector<uint32_t> rows = start.gpu;
  rows.insert(rows.end(), start.cpu.begin(), start.cpu.end());
  std::sort(rows.begin(), rows.end());
  return rows;
}

ExtentLimits PackPlan::limits(int64_t number) const {
  ExtentLimits limits;
  limits.generation = generation;
  limits.number = number;
  limits.row_bytes = row_bytes;
  limits.num_vertices = num_vertices;
  limits.gpu_rows = std::ssize(start.gpu);
  limits.cpu_rows = std::ssize(start.cpu);
  limits.page_rows = page.rows;
  limits.max_ring_rows = max_ring_rows;
  limits.depth = depth;
  if (number >= 0 && disk_segment_batches > 0) {
    const auto segment = static_cast<size_t>(number / disk_segment_batches);
    limits.num_pages = first_page[segment + 1] - first_page[segment];
  }
  return limits;
}

int64_t PackPlan::largest_extent() const { return most_bytes(extents); }
int64_t PackPlan::largest_restore() const { return most_bytes(restores); }

PackPlan plan_of(const PackRequest& request, const PackResult& packed, int64_t num_vertices) {
  PackPlan p;
  p.generation = request.generation;
  p.num_vertices = num_vertices;
  p.row_bytes = request.options.row_bytes;
  p.depth = request.options.depth;
  p.policy = request.options.policy;
  p.order = request.options.order;
  p.segment_batches = packed.plan.segment_batches;
  p.disk_segment_batches = packed.plan.disk_segment_batches;
  p.epoch_batches = packed.plan.epoch_batches;
  p.page = packed.plan.page;
  p.max_ring_rows = packed.plan.counts.max_ring_rows;
  p.most_rows = packed.most_rows;
  p.most_pages = packed.most_pages;
  p.most_block_bytes = packed.most_block_bytes;
  std::copy_n(packed.file_bytes, 3, p.file_bytes);
  p.start = packed.plan.start;
  p.extents = packed.extents;
  p.restores = packed.restores;
  p.first_page = packed.first_page;
  return p;
}

std::vector<std::byte> encode_plan(const PackPlan& p) {
  PlanHead head;
  head.generation = p.generation;
  head.num_vertices = p.num_vertices;
  head.row_bytes = p.row_bytes;
  head.depth = p.depth;
  head.policy = static_cast<int64_t>(p.policy);
  head.order = static_cast<int64_t>(p.order.order);
  head.order_batches = p.order.segment_batches;
  head.segment_batches = p.segment_batches;
  head.disk_segment_batches = p.disk_segment_batches;
  head.page_rows = p.page.rows;
  head.page_bytes = p.page.bytes;
  head.max_ring_rows = p.max_ring_rows;
  head.most_rows = p.most_rows;
  head.most_pages = p.most_pages;
  head.most_block_bytes = p.most_block_bytes;
  std::copy_n(p.file_bytes, 3, head.file_bytes.begin());
  head.hot_sum = p.hot_sum;
  head.counts = {std::ssize(p.start.gpu), std::ssize(p.start.cpu),  std::ssize(p.extents),
                 std::ssize(p.restores),  std::ssize(p.first_page), std::ssize(p.page_sums)};
  head.epoch_batches = p.epoch_batches == p.num_batches() ? 0 : p.epoch_batches;
  std::vector<std::byte> out(sizeof(PlanHead));
  put(&out, p.start.gpu);
  put(&out, p.start.cpu);
  put(&out, p.extents);
  put(&out, p.restores);
  put(&out, p.first_page);
  put(&out, p.page_sums);
  std::memcpy(out.data(), &head, sizeof(PlanHead));
  head.crc = base::crc32c(std::span(out).subspan(kSummed));
  std::memcpy(out.data(), &head, sizeof(PlanHead));
  return out;
}

base::Result<PackPlan> parse_plan(std::span<const std::byte> bytes, const std::string& name) {
  const auto corrupt = [&](const std::string& why) { return base::error(Errc::corrupt, "{}: {}", name, why); };
  PlanHead head;
  if (bytes.size() < sizeof(PlanHead)) return corrupt(base::format("{} bytes, no header fits", bytes.size()));
  std::memcpy(&head, bytes.data(), sizeof(PlanHead));
  if (head.magic != kPlanMagic) return corrupt("this is no plan of packs");
  if (head.version != kVersion)
    return base::error(Errc::version_mismatch, "{}: format {}, wanted {}", name, head.version, kVersion);
  const uint32_t seen = base::crc32c(bytes.subspan(kSummed));
  if (seen != head.crc) return corrupt(base::format("checksum is {}, wanted {}", seen, head.crc));
  PackPlan p;
  p.generation = head.generation;
  p.num_vertices = head.num_vertices;
  p.row_bytes = head.row_bytes;
  p.depth = static_cast<int>(std::clamp<int64_t>(head.depth, -1, 1000));
  p.policy = static_cast<CachePolicy>(std::clamp<int64_t>(head.policy, 0, 255));
  p.order = {static_cast<BatchOrder>(std::clamp<int64_t>(head.order, 0, 255)), head.order_batches};
  p.segment_batches = head.segment_batches;
  p.disk_segment_batches = head.disk_segment_batches;
  p.page = {head.page_rows, head.page_bytes};
  p.epoch_batches = head.epoch_batches;
  p.max_ring_rows = head.max_ring_rows;
  p.most_rows = head.most_rows;
  p.most_pages = head.most_pages;
  p.most_block_bytes = head.most_block_bytes;
  std::copy_n(head.file_bytes.begin(), 3, p.file_bytes);
  p.hot_sum = static_cast<uint32_t>(head.hot_sum);
  std::span<const std::byte> rest = bytes.subspan(sizeof(PlanHead));
  if (!take(&rest, head.counts[0], &p.start.gpu) || !take(&rest, head.counts[1], &p.start.cpu) ||
      !take(&rest, head.counts[2], &p.extents) || !take(&rest, head.counts[3], &p.restores) ||
      !take(&rest, head.counts[4], &p.first_page) || !take(&rest, head.counts[5], &p.page_sums) || !rest.empty())
    return corrupt(base::format("{} bytes do not fit its tables", bytes.size()));
  if (p.epoch_batches == 0) p.epoch_batches = std::max<int64_t>(p.num_batches(), 1);
  if (const std::string fault = plan_fault(p); !fault.empty()) return corrupt(fault);
  return p;
}

}  // namespace overlace::gnn
