#include "src/gnn/pack/extent.h"

#include <bit>
#include <cstring>
#include <iterator>

#include "src/base/crc32c.h"

namespace overlace::gnn {
namespace {

static_assert(std::endian::native == std::endian::little, "extents are written as they lie in memory");
static_assert(sizeof(Admission) == 8 && sizeof(SlotMove) == 8);

constexpr std::array<char, 8> kMagic = {'O', 'V', 'L', 'E', 'X', 'T', 'N', 'T'};
constexpr uint32_t kVersion = 1;
constexpr std::array<const char*, kExtentSections> kNames = {"reached", "indptr",     "indices", "labels", "inputs",
                                                             "program", "admissions", "moves",   "pages",  "rows"};

struct Section {
  int64_t offset = 0, bytes = 0;
  uint32_t crc = 0, zero = 0;
};
struct Head {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion, zero = 0;
  Generation generation{};
  int64_t number = 0, bytes = 0, row_bytes = 0;
  std::array<Section, kExtentSections> sections{};
  std::array<uint8_t, kExtentPage - 56 - 24 * kExtentSections - 8> zeros{};
  uint32_t more_zeros = 0;
  uint32_t crc = 0;  // of what stands before it
};
static_assert(sizeof(Head) == kExtentPage);

uint32_t own_crc(const Head& head) {
  return base::crc32c(std::as_bytes(std::span<const Head, 1>(&head, 1)).first(sizeof(Head) - sizeof(head.crc)));
}

/// Copies sections into the bytes behind the header page.
class Encoder {
 public:
  Encoder(const ExtentLayout& layout, ExtentSums* sums)
      : layout_(layout),
        sums_(sums),
        bytes_(static_cast<size_t>(layout.at(ExtentSection::rows).offset - kExtentPage)) {}
  template <class T>
  void put(ExtentSection section, std::span<const T> values) {
    const ExtentPart& part = layout_.at(section);
    const auto source = std::as_bytes(values);
    OVERLACE_ASSERT(std::ssize(source) == part.bytes);
    if (!source.empty()) std::memcpy(bytes_.data() + part.offset - kExtentPage, source.data(), source.size());
    sums_->crc[static_cast<size_t>(section)] = base::crc32c(source);
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  const ExtentLayout& layout_;
  ExtentSums* sums_;
  std::vector<std::byte> bytes_;
};

template <class T>
std::span<const T> part_as(std::span<const std::byte> bytes, const Section& section) {
  return {reinterpret_cast<const T*>(bytes.data() + section.offset), static_cast<size_t>(section.bytes) / sizeof(T)};
}

/// "" or where an index of a program leads nowhere.
std::string program_fault(const ExtentView& view, const ExtentLimits& limits) {
  const auto depth = static_cast<uint32_t>(limits.depth);
  const int64_t own = std::ssize(view.rows) / limits.row_bytes + std::ssize(view.pages) * limits.page_rows;
  for (size_t i = 0; i < view.program.size(); ++i) {
    const uint32_t word = view.program[i], index = row_index(word);
    int64_t seen = index, wanted = 0;
    switch (row_level(word)) {
      case RowLevel::gpu:
        wanted = limits.gpu_rows;
        break;
      case RowLevel::cpu:
        wanted = limits.cpu_rows;
        break;
      case RowLevel::ring:
        seen = ring_row(index, depth);
        wanted = ring_age(index, depth) == 0 ? own : limits.max_ring_rows;
        break;
    }
    if (seen >= wanted)
      return base::format("program[{}] is row {} of level {}, wanted one below {}", i, seen, word >> kRowIndexBits,
                          wanted);
  }
  for (const Admission& a : view.admissions)
    if (a.slot >= limits.cpu_rows || a.ring_row >= own)
      return base::format("an admission of row {} to slot {}, wanted below {} and {}", a.ring_row, a.slot, own,
                          limits.cpu_rows);
  for (const uint32_t page : view.pages)
    if (page >= limits.num_pages) return base::format("page {}, wanted one below {}", page, limits.num_pages);
  for (const SlotMove& m : view.moves)
    if (m.from > limits.cpu_rows || m.to > limits.cpu_rows)  // the slot behind the last one is spare
      return base::format("a move from slot {} to {}, wanted at most {}", m.from, m.to, limits.cpu_rows);
  return "";
}

}  // namespace

ExtentCounts counts_of(const BatchView& view, const BatchPlan& plan) {
  ExtentCounts counts;
  counts.reached = std::ssize(view.reached);
  counts.indptr = std::ssize(view.indptr);
  counts.indices = std::ssize(view.indices);
  counts.seeds = view.num_seeds();
  counts.inputs = std::ssize(plan.program);
  counts.admissions = std::ssize(plan.admissions);
  counts.pages = std::ssize(plan.pages);
  counts.rows = std::ssize(plan.pack);
  return counts;
}

ExtentCounts counts_of(const Restore& restore) {
  ExtentCounts counts;
  counts.admissions = std::ssize(restore.loads);
  counts.moves = std::ssize(restore.moves);
  counts.rows = std::ssize(restore.rows);
  return counts;
}

int64_t restore_extent_bytes(const Restore& restore, int64_t row_bytes) {
  if (restore.loads.empty() && restore.moves.empty()) return 0;
  return extent_layout(counts_of(restore), row_bytes).bytes;
}

std::vector<std::byte> encode_sections(const BatchView& view, std::span<const int32_t> labels, const BatchPlan& plan,
                                       const ExtentLayout& layout, ExtentSums* sums) {
  Encoder out(layout, sums);
  out.put(ExtentSection::reached, view.reached);
  out.put(ExtentSection::indptr, view.indptr);
  out.put(ExtentSection::indices, view.indices);
  out.put(ExtentSection::labels, labels);
  out.put(ExtentSection::inputs, view.inputs);
  out.put(ExtentSection::program, std::span<const uint32_t>(plan.program));
  out.put(ExtentSection::admissions, std::span<const Admission>(plan.admissions));
  out.put(ExtentSection::pages, std::span<const uint32_t>(plan.pages));
  return out.take();
}

std::vector<std::byte> encode_sections(const Restore& restore, const ExtentLayout& layout, ExtentSums* sums) {
  Encoder out(layout, sums);
  out.put(ExtentSection::admissions, std::span<const Admission>(restore.loads));
  out.put(ExtentSection::moves, std::span<const SlotMove>(restore.moves));
  return out.take();
}

std::vector<std::byte> encode_header(const Generation& generation, int64_t number, int64_t row_bytes,
                                     const ExtentLayout& layout, const ExtentSums& sums) {
  Head head;
  head.generation = generation;
  head.number = number;
  head.bytes = layout.bytes;
  head.row_bytes = row_bytes;
  for (size_t i = 0; i < kExtentSections; ++i)
    head.sections[i] = {layout.parts[i].offset, layout.parts[i].bytes, sums.crc[i], 0};
  head.crc = own_crc(head);
  const auto bytes = std::as_bytes(std::span<const Head, 1>(&head, 1));
  return {bytes.begin(), bytes.end()};
}

base::Result<ExtentView> open_extent(std::span<const std::byte> bytes, const ExtentLimits& limits,
                                     const std::string& name, ExtentSumsChecked checked) {
  const auto corrupt = [&](const std::string& why) {
    return base::error(Errc::corrupt, "{}: extent {}: {}", name, limits.number, why);
  };
  OVERLACE_ASSERT(reinterpret_cast<uintptr_t>(bytes.data()) % alignof(uint64_t) == 0 && limits.row_bytes > 0);
  if (bytes.size() < sizeof(Head)) return corrupt(base::format("{} bytes, no header fits", bytes.size()));
  Head head;
  std::memcpy(&head, bytes.data(), sizeof(Head));
  if (head.magic != kMagic) return corrupt("this is no extent");
  if (head.crc != own_crc(head))
    return corrupt(base::format("checksum of the header is {}, wanted {}", own_crc(head), head.crc));
  if (head.version != kVersion)
    return base::error(Errc::version_mismatch, "{}: extent {} has format {}, wanted {}", name, limits.number,
                       head.version, kVersion);
  if (head.generation != limits.generation)
    return base::error(Errc::stale, "{}: extent {} was made for another dataset, trace or plan", name, limits.number);
  if (head.number != limits.number || head.row_bytes != limits.row_bytes)
    return corrupt(base::format("it is number {} with rows of {} bytes, wanted rows of {}", head.number, head.row_bytes,
                                limits.row_bytes));

  // Sizes have to give the layout that any writer gives them; so nothing overlaps or leaves the extent.
  const auto count = [&](ExtentSection s, int64_t unit) { return head.sections[static_cast<size_t>(s)].bytes / unit; };
  for (const Section& s : head.sections)
    if (s.bytes < 0 || s.bytes > std::ssize(bytes)) return corrupt("a section is larger than the extent");
  const ExtentLayout layout = extent_layout({.reached = count(ExtentSection::reached, 4),
                                             .indptr = count(ExtentSection::indptr, 4),
                                             .indices = count(ExtentSection::indices, 4),
                                             .seeds = count(ExtentSection::labels, 4),
                                             .inputs = count(ExtentSection::inputs, 4),
                                             .admissions = count(ExtentSection::admissions, 8),
                                             .moves = count(ExtentSection::moves, 8),
                                             .pages = count(ExtentSection::pages, 4),
                                             .rows = count(ExtentSection::rows, limits.row_bytes)},
                                            limits.row_bytes);
  if (head.bytes != layout.bytes || std::ssize(bytes) != layout.bytes)
    return corrupt(base::format("{} bytes, wanted {}", bytes.size(), layout.bytes));
  for (size_t i = 0; i < kExtentSections; ++i) {
    const Section& s = head.sections[i];
    if (s.offset != layout.parts[i].offset || s.bytes != layout.parts[i].bytes)
      return corrupt(base::format("section {} has {} bytes at {}, wanted {} at {}", kNames[i], s.bytes, s.offset,
                                  layout.parts[i].bytes, layout.parts[i].offset));
    const bool is_rows = i == static_cast<size_t>(ExtentSection::rows);
    if (checked == ExtentSumsChecked::none || (is_rows && checked == ExtentSumsChecked::all_but_rows)) continue;
    const uint32_t seen = base::crc32c(bytes.subspan(static_cast<size_t>(s.offset), static_cast<size_t>(s.bytes)));
    if (seen != s.crc)
      return corrupt(base::format("checksum of {} at byte {} is {}, wanted {}", kNames[i], s.offset, seen, s.crc));
  }

  const auto at = [&](ExtentSection s) -> const Section& { return head.sections[static_cast<size_t>(s)]; };
  ExtentView view;
  view.batch.reached = part_as<uint32_t>(bytes, at(ExtentSection::reached));
  view.batch.indptr = part_as<uint32_t>(bytes, at(ExtentSection::indptr));
  view.batch.indices = part_as<uint32_t>(bytes, at(ExtentSection::indices));
  view.batch.inputs = part_as<uint32_t>(bytes, at(ExtentSection::inputs));
  view.labels = part_as<int32_t>(bytes, at(ExtentSection::labels));
  view.program = part_as<uint32_t>(bytes, at(ExtentSection::program));
  view.admissions = part_as<Admission>(bytes, at(ExtentSection::admissions));
  view.moves = part_as<SlotMove>(bytes, at(ExtentSection::moves));
  view.pages = part_as<uint32_t>(bytes, at(ExtentSection::pages));
  view.rows = part_as<std::byte>(bytes, at(ExtentSection::rows));
  if (const std::string fault = block_fault(view.batch, limits.num_vertices); !fault.empty()) return corrupt(fault);
  if (std::ssize(view.labels) != view.batch.num_seeds())
    return corrupt(base::format("{} labels, wanted {}", view.labels.size(), view.batch.num_seeds()));
  if (const std::string fault = program_fault(view, limits); !fault.empty()) return corrupt(fault);
  return view;
}

}  // namespace overlace::gnn
