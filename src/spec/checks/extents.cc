// S2 across regions: what a task reads fits what it writes.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "src/base/format.h"
#include "src/spec/checks/graph.h"
#include "src/spec/checks/task_form.h"
#include "src/spec/operators.h"

namespace overlace::spec {
namespace {

class ExtentCheck {
 public:
  ExtentCheck(const AllRanks& team, int rank, int instance, Findings* out)
      : team_(team), rank_(rank), in_(team.at(rank, instance)), id_(team.id(rank, instance)), out_(out) {}

  void run() {
    const Task& task = team_.schedule->tasks[static_cast<size_t>(in_.task)];
    if (task.kind == Kind::gemm) gemm(task);
    if (task.kind == Kind::tiles) tiles(task);
    if (task.kind == Kind::copy) copy();
    if (task.kind == Kind::reduce) reduce(task);
    if (task.kind == Kind::collective) collective(task);
    if (task.kind == Kind::pool && (!in_.reads.empty() || in_.writes.size() != 1 || in_.writes[0].size() != 1))
      fail("a pool reads no region and writes one box");
  }

 private:
  void fail(const std::string& why) { out_->error("S2", id_, rank_, why); }
  std::string text(const Box& box) const { return box_text(*team_.schedule, box); }
  /// Pairs box i of one list with box i of the other.
  bool same_length(const std::vector<Box>& a, const std::vector<Box>& b) {
    if (a.size() != b.size()) fail(base::format("{} boxes to read, {} to write", a.size(), b.size()));
    return a.size() == b.size();
  }

  void gemm(const Task& task) {
    const size_t operands = in_.reads.size() - std::min(num_scales(task), in_.reads.size());
    if (operands < 2 || operands > 3 || in_.writes.size() != 1 || in_.reads[1].size() != 1) {
      return fail(
          "a gemm reads a, one b, perhaps a bias and, with the parameter scales, those of a and of b, and writes c");
    }
    if (sums_rows(task) && in_.reads[0].size() != 1) return fail("a gemm that sums rows of a reads one box of it");
    if (columns_per_result(task.params) != 1) return fail("a gemm has no activation: a reduce behind it makes it");
    product(task, operands == 3 ? &in_.reads[2] : nullptr);
    if (num_scales(task) > 0) scales(task);
  }
  /// One number for each row of a and for each column of c, or one for either.
  void scales(const Task& task) {
    const std::vector<Box>&a = in_.reads[0], &of_a = in_.reads[in_.reads.size() - 2], &of_b = in_.reads.back();
    const bool has_rows = scales_of(task.params) == Scales::rows;
    const Rect b = rect_of(in_.reads[1][0]);
    const int64_t n = !has_rows ? 1 : is_b_nk(task) ? b.rows : b.columns;
    if (sums_rows(task)) return fail("a gemm that sums rows of a has no scales");
    if (of_b.size() != 1 || of_b[0].numel() != n)
      return fail(base::format("the scales of b are not the {} of its columns", n));
    if (of_a.size() != (has_rows ? a.size() : 1)) return fail("the scales of a have another number of boxes than a");
    for (size_t i = 0; i < of_a.size(); ++i) {
      const Rect scale = rect_of(of_a[i]);
      const int64_t wanted = has_rows ? rect_of(a[i]).rows : 1;
      if (of_a[i].numel() != wanted || scale.columns != 1)
        return fail(base::format("{} are not the scales of the {} rows of {}", text(of_a[i]), wanted, text(a[i])));
    }
  }
  /// a b gives c, column by column with the bias.
  void product(const Task& task, const std::vector<Box>* bias) {
    const std::vector<Box>&a = in_.reads[0], &c = in_.writes[0];
    if (!same_length(a, c)) return;
    const Rect b = rect_of(in_.reads[1][0]);
    const bool is_nk = is_b_nk(task);
    const int64_t n = is_nk ? b.rows : b.columns, k = is_nk ? b.columns : b.rows;
    for (size_t i = 0; i < a.size(); ++i) {
      Rect x = rect_of(a[i]);
      const Rect y = rect_of(c[i]);
      if (sums_rows(task)) std::swap(x.rows, x.columns);
      if (x.rows != y.rows || x.columns != k || y.columns * columns_per_result(task.params) != n) {
        return fail(base::format("{} times {} does not give {}", text(a[i]), text(in_.reads[1][0]), text(c[i])));
      }
    }
    if (bias != nullptr && (bias->size() != 1 || bias->front().numel() != n)) {
      fail(base::format("the bias has not the {} columns of the result", n));
    }
  }
  /// A gemm of one box.
  void tiles(const Task& task) {
    const size_t num_bias = has_bias(task) ? 1 : 0;
    if (in_.reads.size() != 2 + num_bias || in_.writes.size() != 1 || in_.writes[0].size() != 1 ||
        in_.reads[0].size() != 1 || in_.reads[1].size() != 1) {
      return fail("tiles read one a, one b and perhaps a bias, and write one c");
    }
    if (sums_rows(task)) return fail("tiles do not sum rows of a");
    product(task, num_bias == 1 && !in_.reads.back().empty() ? &in_.reads.back() : nullptr);
  }
  void copy() {
    if (in_.reads.size() != 1 || in_.writes.size() != 1) return fail("a copy has one region to read and one to write");
    if (!same_length(in_.reads[0], in_.writes[0])) return;
    for (size_t i = 0; i < in_.reads[0].size(); ++i) {
      const Box &from = in_.reads[0][i], &to = in_.writes[0][i];
      const bool is_empty = from.empty() && to.empty();
      if (!is_empty && !same_extent(rect_of(from), rect_of(to))) {
        return fail(base::format("copies {} to {} of another extent", text(from), text(to)));
      }
      if (team_.schedule->buffers[static_cast<size_t>(from.buffer)].dtype !=
          team_.schedule->buffers[static_cast<size_t>(to.buffer)].dtype) {
        return fail(base::format("copies {} to {} of another type", text(from), text(to)));
      }
      if (from.rank != rank_) return fail(base::format("pulls {}: copies push", text(from)));
    }
  }
  void reduce(const Task& task) {
    const size_t num_norm = has_norm(task) ? 1 : 0, num_behind = num_norm + (has_bias(task) ? 1 : 0);
    const auto is_one = [](const std::vector<Box>& boxes) { return boxes.size() == 1; };
    if (in_.reads.size() <= num_behind || in_.writes.size() != 1 + num_norm ||
        !std::all_of(in_.writes.begin(), in_.writes.end(), is_one)) {
      return fail("a reduce reads sources, perhaps a bias, and writes one box; with a norm a weight and one box more");
    }
    const Rect to = sums_of(task, in_.writes[0][0]);
    const size_t num_sources = in_.reads.size() - num_behind;
    for (size_t i = 0; i < num_sources; ++i) {
      for (const Box& from : in_.reads[i]) {
        if ((from.empty() && to.rows * to.columns == 0) || same_extent(rect_of(from), to)) continue;
        return fail(base::format("adds {} to {} of another extent", text(from), text(in_.writes[0][0])));
      }
    }
    for (size_t i = num_sources; i < in_.reads.size(); ++i) {
      const bool is_weight = num_norm == 1 && i + 1 == in_.reads.size();
      if (!is_one(in_.reads[i]) || in_.reads[i][0].numel() != to.columns)
        fail(base::format("the {} has not the {} columns of the result", is_weight ? "weight" : "bias", to.columns));
    }
    if (num_norm == 0) return;
    if (columns_per_result(task.params) != 1) return fail("a norm has no activation before it");
    if (!same_extent(rect_of(in_.writes[1][0]), to))
      fail(base::format("normalizes {} to {} of another extent", text(in_.writes[0][0]), text(in_.writes[1][0])));
  }
  void collective(const Task& task) {
    const std::string name = collective_of(task);
    if (name != "all_gather" && name != "reduce_scatter" && name != "all_reduce" && name != "all_to_all") {
      return fail(base::format("collective '{}', wanted all_gather, reduce_scatter, all_reduce or all_to_all", name));
    }
    if (in_.reads.size() != 1 || in_.writes.size() != 1 || in_.reads[0].size() != 1 || in_.writes[0].size() != 1) {
      return fail("a collective reads one box and writes one");
    }
    const Rect send = rect_of(in_.reads[0][0]), recv = rect_of(in_.writes[0][0]);
    int64_t sends = 0, recvs = 0;  // rows of all ranks
    for (int rank = 0; rank < team_.size(); ++rank) {
      for (const Instance& other : team_.ranks[static_cast<size_t>(rank)].instances) {
        if (other.task != in_.task || other.loop_values != in_.loop_values) continue;
        if (other.reads.size() == 1 && other.reads[0].size() == 1) sends += rect_of(other.reads[0][0]).rows;
        if (other.writes.size() == 1 && other.writes[0].size() == 1) recvs += rect_of(other.writes[0][0]).rows;
      }
    }
    const bool fits = send.columns == recv.columns && (name == "all_gather"       ? sends == recv.rows
                                                       : name == "reduce_scatter" ? recvs == send.rows
                                                                                  : send.rows == recv.rows);
    if (name == "all_to_all" && task.params.contains("splits")) return splits(task, send, recv);
    if (name == "all_to_all" && send.rows % team_.size() != 0)
      return fail(base::format("all_to_all of {}, wanted as many rows for each of {} ranks", text(in_.reads[0][0]),
                               team_.size()));
    if (!fits) fail(base::format("{} of {} does not give {}", name, text(in_.reads[0][0]), text(in_.writes[0][0])));
  }

  /// An uneven all_to_all: the table says how many rows go from each rank to each.
  void splits(const Task& task, const Rect& send, const Rect& recv) {
    const std::vector<int64_t>* table = splits_table(*team_.schedule, task, team_.size());
    if (table == nullptr)
      return fail(base::format("splits name no table of {} entries, 0 or more", team_.size() * team_.size()));
    int64_t sends = 0, recvs = 0;
    for (int rank = 0; rank < team_.size(); ++rank) {
      sends += (*table)[static_cast<size_t>(rank_ * team_.size() + rank)];
      recvs += (*table)[static_cast<size_t>(rank * team_.size() + rank_)];
    }
    if (sends != send.rows || recvs != recv.rows || send.columns != recv.columns)
      fail(base::format("all_to_all of {} to {}, wanted {} rows that go and {} that come, of equal columns",
                        text(in_.reads[0][0]), text(in_.writes[0][0]), sends, recvs));
  }

  const AllRanks& team_;
  const int rank_;
  const Instance& in_;
  const std::string id_;
  Findings* out_;
};

}  // namespace

Rect rect_of(const Box& box) {
  Rect out;
  const int d = box.ndim;
  out.buffer = box.buffer;
  out.rank = box.rank;
  out.column = box.begin[d - 1], out.columns = box.count[d - 1];
  if (d >= 2) out.row = box.begin[d - 2], out.rows = box.count[d - 2];
  if (d >= 3) out.layer = box.begin[0], out.layers = box.count[0];
  return out;
}

Rect sums_of(const Task& task, const Box& result) {
  Rect out = rect_of(result);
  out.column *= columns_per_result(task.params);
  out.columns *= columns_per_result(task.params);
  return out;
}

bool same_extent(const Rect& a, const Rect& b) {
  return a.layers == b.layers && a.rows == b.rows && a.columns == b.columns;
}

bool is_b_nk(const Task& task) {
  const auto it = task.params.find("b_layout");
  const auto* text = it == task.params.end() ? nullptr : std::get_if<std::string>(&it->second);
  return text == nullptr || *text != "kn";
}

bool has_bias(const Task& task) {
  const auto it = task.params.find("bias");
  const bool* flag = it == task.params.end() ? nullptr : std::get_if<bool>(&it->second);
  return flag != nullptr && *flag;
}

std::string collective_of(const Task& task) {
  const auto it = task.params.find("collective");
  const auto* text = it == task.params.end() ? nullptr : std::get_if<std::string>(&it->second);
  return text == nullptr ? "" : *text;
}

void check_extents(const AllRanks& team, Findings* out) {
  for (int rank = 0; rank < team.size(); ++rank) {
    const size_t n = team.ranks[static_cast<size_t>(rank)].instances.size();
    for (size_t i = 0; i < n; ++i) ExtentCheck(team, rank, static_cast<int>(i), out).run();
  }
}

}  // namespace overlace::spec
