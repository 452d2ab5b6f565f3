#include "src/gnn/pack/packer.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>

#include "src/base/crc32c.h"
#include "src/io/alignment.h"

namespace overlace::gnn {
namespace {

/// Rows that lie one after the other in a file, ascending by vertex.
struct RowList {
  PackFile file = PackFile::packs;
  int64_t offset = 0;         // of the first row
  size_t begin = 0, end = 0;  // in the ids of all lists
  size_t done = 0;            // rows that earlier passes have written
  int64_t padding = 0;        // zero bytes behind the last row
  uint32_t crc = 0;           // of the rows so far
};

class Packer {
 public:
  Packer(const InputTrace& trace, const PackRequest& request, RowSource* source, PackStore* store)
      : trace_(trace), request_(request), source_(source), store_(store), row_bytes_(request.options.row_bytes) {}

  base::Result<PackResult> run() {
    if (!request_.labels.empty() && std::ssize(request_.labels) != trace_.num_vertices())
      return base::invalid_argument("labels: {} of them, wanted {}", request_.labels.size(), trace_.num_vertices());
    auto plan = plan_levels(trace_, request_.options,
                            [this](int64_t b, const BatchPlan& batch) { return begin_batch(b, batch); });
    if (!plan.ok()) return plan.status();
    if (request_.memory_bytes / 2 < row_bytes_)
      return base::invalid_argument("memory_bytes is {}, wanted at least {}, two rows", request_.memory_bytes,
                                    2 * row_bytes_);
    out_.plan = std::move(*plan);
    OVERLACE_TRY(begin_restores());
    begin_hot_rows();
    place_pages();
    OVERLACE_TRY(request_.done ? go_on() : store_->keep(progress(0)));
    OVERLACE_TRY(write_rows());
    OVERLACE_TRY(write_headers());
    out_.hot_sum = lists_.back().crc;
    return std::move(out_);
  }

 private:
  struct Extent {
    int64_t number;
    ExtentPlace place;
    ExtentLayout layout;
    ExtentSums sums;
    size_t list;
  };

  base::Status write(PackFile file, int64_t offset, std::span<const std::byte> bytes) {
    if (bytes.empty()) return {};
    out_.bytes_written += std::ssize(bytes);
    return store_->write(file, offset, bytes);
  }

  size_t add_list(PackFile file, int64_t offset, std::span<const uint32_t> rows, int64_t padding) {
    const size_t begin = ids_.size();
    ids_.insert(ids_.end(), rows.begin(), rows.end());
    lists_.push_back({file, offset, begin, ids_.size(), 0, padding, 0});
    return lists_.size() - 1;
  }

  /// Writes all but header and rows, which follow.
  base::Status begin_extent(int64_t number, const ExtentLayout& layout, std::span<const uint32_t> rows,
                            const ExtentSums& sums, std::span<const std::byte> sections) {
    const ExtentPart& part = layout.at(ExtentSection::rows);
    const int64_t padding = layout.bytes - part.offset - part.bytes;
    const size_t list = add_list(PackFile::packs, end_ + part.offset, rows, padding);
    extents_.push_back({number, {end_, layout.bytes}, layout, sums, list});
    end_ += layout.bytes;
    if (request_.done) return {};
    return write(PackFile::packs, extents_.back().place.offset + kExtentPage, sections);
  }

  base::Status begin_batch(int64_t b, const BatchPlan& plan) {
    const BatchView view = trace_.batch(b);
    if (const std::string fault = block_fault(view, trace_.num_vertices()); !fault.empty())
      return base::error(Errc::corrupt, "trace: batch {}: {}", b, fault);
    std::vector<int32_t> labels(static_cast<size_t>(view.num_seeds()), -1);
    for (size_t i = 0; i < labels.size() && !request_.labels.empty(); ++i) labels[i] = request_.labels[view.inputs[i]];
    const ExtentLayout layout = extent_layout(counts_of(view, plan), row_bytes_);
    ExtentSums sums;
    const std::vector<std::byte> sections = encode_sections(view, labels, plan, layout, &sums);
    out_.extents.push_back({end_, layout.bytes});
    out_.most_rows = std::max(out_.most_rows, std::ssize(view.inputs));
    out_.most_block_bytes = std::max(out_.most_block_bytes, layout.block_bytes());
    out_.most_pages = std::max(out_.most_pages, std::ssize(plan.pages));
    return begin_extent(b, layout, plan.pack, sums, sections);
  }

  base::Status begin_restores() {
    for (const Restore& restore : out_.plan.restores) {
      const int64_t number = -1 - std::ssize(out_.restores);
      out_.restores.push_back({end_, restore_extent_bytes(restore, row_bytes_)});
      if (out_.restores.back().bytes == 0) continue;
      const ExtentLayout layout = extent_layout(counts_of(restore), row_bytes_);
      ExtentSums sums;
      const std::vector<std::byte> sections = encode_sections(restore, layout, &sums);
      OVERLACE_TRY(begin_extent(number, layout, restore.rows, sums, sections));
    }
    return {};
  }

  void begin_hot_rows() {
    const CachedRows& start = out_.plan.start;
    out_.hot.assign(start.gpu.begin(), start.gpu.end());
    out_.hot.insert(out_.hot.end(), start.cpu.begin(), start.cpu.end());
    std::sort(out_.hot.begin(), out_.hot.end());
    add_list(PackFile::hot, 0, out_.hot, 0);
    out_.file_bytes[static_cast<size_t>(PackFile::packs)] = end_;
    out_.file_bytes[static_cast<size_t>(PackFile::hot)] = std::ssize(out_.hot) * row_bytes_;
  }

  /// Rows of pages come in the order of pages, not of vertices: each has a place of its own.
  void place_pages() {
    int64_t page = 0;
    for (const SegmentPages& segment : out_.plan.disk_segments) {
      out_.first_page.push_back(page);
      const PageShape& shape = out_.plan.page;
      for (size_t i = 0; i < segment.rows.size(); ++i) {
        const auto place = static_cast<int64_t>(i);
        const int64_t offset = (page + place / shape.rows) * shape.bytes + place % shape.rows * row_bytes_;
        paged_.push_back({segment.rows[i], offset});
      }
      page += segment.num_pages(shape);
    }
    out_.first_page.push_back(page);
    out_.file_bytes[static_cast<size_t>(PackFile::disk_cache)] = page * out_.plan.page.bytes;
    std::sort(paged_.begin(), paged_.end());
  }

  PackProgress progress(int64_t rows) const {
    PackProgress done{rows, {}};
    for (const RowList& list : lists_) done.sums.push_back(list.crc);
    return done;
  }

  /// Behind the rows of an earlier run.
  base::Status go_on() {
    const PackProgress& done = *request_.done;
    if (done.rows < 0 || done.rows > trace_.num_vertices() || done.sums.size() != lists_.size())
      return base::invalid_argument("progress: {} rows and {} sums, wanted at most {} and {}", done.rows,
                                    done.sums.size(), trace_.num_vertices(), lists_.size());
    first_ = done.rows;
    for (size_t i = 0; i < lists_.size(); ++i) {
      RowList& list = lists_[i];
      const auto begin = ids_.begin() + static_cast<ptrdiff_t>(list.begin);
      const auto end = ids_.begin() + static_cast<ptrdiff_t>(list.end);
      list.done = static_cast<size_t>(std::lower_bound(begin, end, static_cast<uint64_t>(first_)) - begin);
      list.crc = done.sums[i];
    }
    return {};
  }

  /// Half of the memory; whole pages where that is a page at least, so that reads pass the page cache by.
  int64_t rows_at_once() const {
    const int64_t rows = request_.memory_bytes / 2 / row_bytes_;
    const int64_t whole_pages = io::kPageBytes / std::gcd(row_bytes_, io::kPageBytes);
    const int64_t taken = rows < whole_pages ? rows : rows / whole_pages * whole_pages;
    return std::max<int64_t>(1, std::min(trace_.num_vertices(), taken));
  }

  base::Status write_rows() {
    const int64_t n = trace_.num_vertices();
    const int64_t at_once = rows_at_once();
    auto part = io::AlignedBuffer::allocate(static_cast<size_t>(at_once * row_bytes_));
    if (!part.ok()) return part.status();
    std::vector<std::byte> run;
    const std::pair<uint64_t, int64_t> next_paged(static_cast<uint64_t>(first_), -1);
    auto paged = static_cast<size_t>(std::lower_bound(paged_.begin(), paged_.end(), next_paged) - paged_.begin());
    for (int64_t first = first_; first < n; first += at_once) {
      const int64_t count = std::min(at_once, n - first);
      OVERLACE_TRY(source_->read(first, count, std::span(part->data(), static_cast<size_t>(count * row_bytes_))));
      out_.bytes_read += count * row_bytes_;
      ++out_.passes;
      const auto row = [&](uint64_t v) {
        return std::span<const std::byte>(part->data() + (static_cast<int64_t>(v) - first) * row_bytes_,
                                          static_cast<size_t>(row_bytes_));
      };
      for (RowList& list : lists_) {
        const size_t begin = list.begin + list.done;
        size_t end = begin;
        run.clear();
        for (; end < list.end && ids_[end] < first + count; ++end) {
          const auto bytes = row(ids_[end]);
          run.insert(run.end(), bytes.begin(), bytes.end());
        }
        list.crc = base::crc32c(run, list.crc);
        const int64_t offset = list.offset + static_cast<int64_t>(list.done) * row_bytes_;
        const bool is_last = end == list.end && end > begin;
        if (is_last) run.resize(run.size() + static_cast<size_t>(list.padding));
        list.done = end - list.begin;
        OVERLACE_TRY(write(list.file, offset, run));
      }
      for (; paged < paged_.size() && static_cast<int64_t>(paged_[paged].first) < first + count; ++paged)
        OVERLACE_TRY(write(PackFile::disk_cache, paged_[paged].second, row(paged_[paged].first)));
      OVERLACE_TRY(store_->keep(progress(first + count)));
      if (request_.progress) request_.progress(static_cast<double>(first + count) / static_cast<double>(n));
    }
    return pad_pages();
  }

  /// What no row touches: the end of the last page.
  base::Status pad_pages() {
    int64_t end = 0;
    for (const auto& [vertex, offset] : paged_) end = std::max(end, offset + row_bytes_);
    const int64_t wanted = out_.file_bytes[static_cast<size_t>(PackFile::disk_cache)];
    return write(PackFile::disk_cache, end, std::vector<std::byte>(static_cast<size_t>(wanted - end)));
  }

  base::Status write_headers() {
    for (Extent& extent : extents_) {
      extent.sums.crc[static_cast<size_t>(ExtentSection::rows)] = lists_[extent.list].crc;
      OVERLACE_TRY(write(PackFile::packs, extent.place.offset,
                         encode_header(request_.generation, extent.number, row_bytes_, extent.layout, extent.sums)));
    }
    return {};
  }

  const InputTrace& trace_;
  const PackRequest& request_;
  RowSource* source_;
  PackStore* store_;
  int64_t row_bytes_;
  int64_t end_ = 0;    // of the packs so far
  int64_t first_ = 0;  // row that is written next
  std::vector<uint32_t> ids_;
  std::vector<RowList> lists_;
  std::vector<Extent> extents_;
  std::vector<std::pair<uint64_t, int64_t>> paged_;  // vertex and where its row goes
  PackResult out_;
};

}  // namespace

base::Result<PackResult> pack_batches(const InputTrace& trace, const PackRequest& request, RowSource* source,
                                      PackStore* store) {
  return Packer(trace, request, source, store).run();
}

}  // namespace overlace::gnn
