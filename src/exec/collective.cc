#include "src/exec/collective.h"

#include <algorithm>
#include <functional>
#include <string_view>

#include "src/spec/operators.h"

namespace overlace::exec {
namespace {

bool is_contiguous(const TensorView& t) { return t.dim(0) <= 1 || t.stride(0) == t.dim(1); }

size_t bytes_of(const TensorView& t) { return static_cast<size_t>(t.numel()) * dtype_bytes(t.dtype); }

bool is_collective(std::string_view name) {
  return name == "all_gather" || name == "reduce_scatter" || name == "all_reduce" || name == "all_to_all";
}

struct Collective {
  const Call& call;
  Team& team;
  NetEngine& net;
  StreamRef stream;
  const CopyRows& copy_rows;
  TensorView in, out;

  /// Rows of rank p in the whole.
  TensorView shard(const TensorView& whole, int p) const {
    const std::vector<int64_t>& off = call.program.schedule.tables.at("off");
    const size_t i = static_cast<size_t>(p);
    return whole.rows(off[i], off[i + 1] - off[i]);
  }
  TensorView own(const TensorView& whole) const { return shard(whole, team.rank()); }

  bool is_ragged() const {
    const std::vector<int64_t>& off = call.program.schedule.tables.at("off");
    for (size_t p = 1; p + 1 < off.size(); ++p) {
      if (off[p + 1] - off[p] != off[1] - off[0]) return true;
    }
    return false;
  }

  base::Status all_gather() {
    const TensorView mine = own(out);
    if (is_ragged()) {
      OVERLACE_TRY(copy_rows(in, mine));
      net.group_begin();
      for (int p = 0; p < team.size(); ++p) {
        if (p == team.rank()) continue;
        const TensorView theirs = shard(out, p);
        if (mine.numel() != 0) net.send(mine.data, bytes_of(mine), p, stream);
        if (theirs.numel() != 0) net.recv(theirs.data, bytes_of(theirs), p, stream);
      }
      net.group_end();
      return {};
    }
    if (!is_contiguous(in)) OVERLACE_TRY(copy_rows(in, mine));
    const void* source = is_contiguous(in) ? in.data : mine.data;
    net.all_gather(source, out.data, static_cast<size_t>(mine.numel()), in.dtype, stream);
    return {};
  }

  base::Status reduce_scatter() {
    const TensorView mine = own(in);
    void* to = is_contiguous(out) ? out.data : mine.data;
    if (is_ragged()) {
      net.group_begin("reduce_scatter");
      for (int p = 0; p < team.size(); ++p) {
        const TensorView rows = shard(in, p);
        if (rows.numel() == 0) continue;
        void* sum = p == team.rank() ? to : rows.data;
        net.reduce(rows.data, sum, static_cast<size_t>(rows.numel()), in.dtype, p, stream);
      }
      net.group_end();
    } else {
      net.reduce_scatter(in.data, to, static_cast<size_t>(mine.numel()), in.dtype, stream);
    }
    return to == out.data ? base::Status() : copy_rows(mine, out);
  }

  base::Status all_reduce() {
    void* to = is_contiguous(out) ? out.data : in.data;
    net.all_reduce(in.data, to, static_cast<size_t>(in.numel()), in.dtype, stream);
    return to == out.data ? base::Status() : copy_rows(in, out);
  }

  /// Block p of mine goes to rank p, block p of what comes is rank p's. `table`: rows from rank to rank; null where all
  /// are equal.
  base::Status all_to_all(const std::vector<int64_t>* table) {
    if ((table == nullptr && is_ragged()) || !is_contiguous(in) || !is_contiguous(out)) {
      return base::error(
          Errc::not_supported,
          "all_to_all of {} rows at a stride of {} to {} at {}: wanted shards of equal length or splits, "
          "and rows without gaps",
          in.dim(0), in.stride(0), out.dim(0), out.stride(0));
    }
    return table == nullptr || is_even(*table) ? even_all_to_all()
                                               : exchange_rows(team, net, in, out, *table, stream, copy_rows);
  }

  base::Status even_all_to_all() {
    net.all_to_all(in.data, out.data, static_cast<size_t>(in.numel() / team.size()), in.dtype, stream);
    return {};
  }

  static bool is_even(const std::vector<int64_t>& table) {
    return std::adjacent_find(table.begin(), table.end(), std::not_equal_to<>()) == table.end();
  }
};

}  // namespace

base::Status exchange_rows(Team& team, NetEngine& net, const TensorView& in, const TensorView& out,
                           const std::vector<int64_t>& table, StreamRef stream, const CopyRows& copy_rows) {
  const int me = team.rank(), ranks = team.size();
  const auto rows = [&](int from, int to) { return table[static_cast<size_t>(from * ranks + to)]; };
  int64_t sent = 0, received = 0;
  TensorView mine, place;
  net.group_begin();
  for (int p = 0; p < ranks; ++p) {
    const TensorView theirs = in.rows(sent, rows(me, p)), from_them = out.rows(received, rows(p, me));
    sent += rows(me, p);
    received += rows(p, me);
    if (p == me) {
      mine = theirs;
      place = from_them;
      continue;
    }
    if (theirs.numel() != 0) net.send(theirs.data, bytes_of(theirs), p, stream);
    if (from_them.numel() != 0) net.recv(from_them.data, bytes_of(from_them), p, stream);
  }
  net.group_end();
  return mine.numel() == 0 ? base::Status() : copy_rows(mine, place);
}

base::Status run_collective(const Call& call, Team& team, const spec::Instance& instance, StreamRef stream,
                            const CopyRows& copy_rows) {
  const spec::Task& task = call.program.task(instance);
  const auto found = task.params.find("collective");
  const std::string name = found != task.params.end() && std::holds_alternative<std::string>(found->second)
                               ? std::get<std::string>(found->second)
                               : "";
  const bool fits = instance.reads.size() == 1 && instance.writes.size() == 1 && instance.reads[0].size() == 1 &&
                    instance.writes[0].size() == 1;
  if (!fits || !is_collective(name)) {
    return base::error(Errc::bad_schedule,
                       "{}: a collective task reads one box and writes one, and is all_gather, reduce_scatter, "
                       "all_reduce or all_to_all; got \"{}\"",
                       task.id, name);
  }
  const spec::Box& from = instance.reads[0][0];
  const spec::Box& to = instance.writes[0][0];
  const TensorView in = view_of(call, team, from), out = view_of(call, team, to);
  if (team.size() == 1) return from.empty() ? base::Status() : copy_rows(in, out);
  const bool has_splits = task.params.contains("splits");
  const std::vector<int64_t>* splits =
      has_splits ? spec::splits_table(call.program.schedule, task, team.size()) : nullptr;
  if (has_splits && splits == nullptr)
    return base::error(
        Errc::bad_schedule,
        "{}: parameter splits names no table of {} entries; wanted: rows from each rank to each, 0 or more", task.id,
        team.size() * team.size());
  // Empty for all ranks alike: the whole has no element. With splits, a rank may have nothing to send, or to get.
  if (splits == nullptr && (name == "all_gather" ? to.empty() : from.empty())) return {};
  if (splits != nullptr && std::all_of(splits->begin(), splits->end(), [](int64_t rows) { return rows == 0; }))
    return {};
  NetEngine* net = team.net();
  if (net == nullptr) {
    return base::error(
        Errc::not_supported,
        "{}: team \"{}\" has no collectives engine; wanted: RuntimeOptions::net_engine auto, nccl, cpu or mpi", task.id,
        team.name());
  }
  Collective collective{call, team, *net, stream, copy_rows, in, out};
  try {
    if (name == "all_gather") return collective.all_gather();
    if (name == "reduce_scatter") return collective.reduce_scatter();
    if (name == "all_to_all") return collective.all_to_all(splits);
    return collective.all_reduce();
  } catch (...) {
    return base::status_of_current_exception();
  }
}

}  // namespace overlace::exec
