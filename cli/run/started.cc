#include "cli/run/started.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <span>
#include <string>

#include "cli/run/failures.h"
#include "cli/run/memory.h"
#include "cli/run/rank.h"
#include "src/runtime/bootstrap/emulated.h"
#include "src/runtime/hello.h"

namespace overlace::cli {
namespace {

using base::Result;
using base::Status;

constexpr int64_t kLastWordsMs = 2000;  // of ranks that failed: some may be gone

Result<std::vector<Bytes>> exchange_before(Bootstrap& bootstrap, const void* data, size_t bytes, int64_t timeout_ms) {
  try {
    return bootstrap.allgather({static_cast<const std::byte*>(data), bytes}, timeout_ms);
  } catch (...) {
    return base::status_of_current_exception();
  }
}

Result<Placement> find_hosts(Bootstrap& bootstrap, int64_t timeout_ms) {
  const HostMark mine{runtime::host_id(), runtime::machine_id()};
  const auto all = exchange_before(bootstrap, &mine, sizeof mine, timeout_ms);
  if (!all.ok()) return all.status();
  std::vector<HostMark> marks(all->size());
  for (size_t rank = 0; rank < marks.size(); ++rank) {
    if ((*all)[rank].size() != sizeof(HostMark))
      return base::error(Errc::version_mismatch, "rank {} says in {} bytes where it is, wanted {}", rank,
                         (*all)[rank].size(), sizeof(HostMark));
    std::memcpy(&marks[rank], (*all)[rank].data(), sizeof(HostMark));
  }
  return place(marks, bootstrap.rank());
}

/// What all ranks know then: the failures of those that have one. An error where not all came.
Result<std::vector<RankFailure>> gather_failures(Bootstrap& bootstrap, const Status& mine, int64_t timeout_ms) {
  const std::string record = mine.ok() ? std::string() : encode_failure({bootstrap.rank(), mine});
  const auto all = exchange_before(bootstrap, record.data(), record.size(), timeout_ms);
  if (!all.ok()) return all.status();
  std::string records;
  for (const Bytes& theirs : *all) records.append(reinterpret_cast<const char*>(theirs.data()), theirs.size());
  return decode_failures(records);
}

int print_failure(const RankFailure& cause, const std::vector<RankFailure>& failures) {
  std::fprintf(stderr, "overlace: error: %s\n", failure_text(cause, failures).c_str());
  return exit_code(cause.status.code());
}

/// The same words and status on all ranks. Nobody leaves before rank 0 has printed: a launcher ends the others when one
/// leaves with an error.
int exit_together(Bootstrap& bootstrap, const std::vector<RankFailure>& failures) {
  const RankFailure cause = first_cause(failures).value();
  if (bootstrap.rank() == 0) print_failure(cause, failures);
  (void)exchange_before(bootstrap, nullptr, 0, kLastWordsMs);
  return exit_code(cause.status.code());
}

Result<RunPlan> plan_here(const RunOptions& options, const base::Env& env, const Surroundings& around) {
  auto plan = make_plan(options, env, around);
  if (plan.ok()) OVERLACE_TRY(check_memory(*plan, host_memory()));
  return plan;
}

int run_with(Bootstrap& bootstrap, const RunOptions& options, const base::Env& env, Surroundings around) {
  const int rank = bootstrap.rank();
  const auto alone = [&](const Status& status) { return print_failure({rank, status}, {{rank, status}}); };
  const auto placement = find_hosts(bootstrap, env.timeout_s * 1000);
  if (!placement.ok()) return alone(placement.status());
  around.placement = *placement;
  const auto plan = plan_here(options, env, around);
  const auto refusals = gather_failures(bootstrap, plan.status(), env.timeout_s * 1000);
  if (!refusals.ok()) return alone(plan.ok() ? refusals.status() : plan.status());
  if (!refusals->empty()) return exit_together(bootstrap, *refusals);
  bool has_opened = false;
  const auto result = run_rank(options, *plan, bootstrap, &has_opened);
  if (result.ok()) return *result ? 0 : kExitWrong;
  // Before that the others may still be talking about something else.
  if (!has_opened) return alone(result.status());
  const auto failures = gather_failures(bootstrap, result.status(), kLastWordsMs);
  return failures.ok() && !failures->empty() ? exit_together(bootstrap, *failures) : alone(result.status());
}

}  // namespace

Placement place(const std::vector<HostMark>& marks, int rank) {
  std::map<uint64_t, int> ranks_of, machines;
  size_t changes = 1;  // of the host, from one rank to the next
  for (size_t r = 0; r < marks.size(); ++r) {
    ++ranks_of[marks[r].host];
    ++machines[marks[r].machine];
    if (r > 0 && marks[r].host != marks[r - 1].host) ++changes;
  }
  Placement out;
  out.hosts = static_cast<int>(ranks_of.size());
  out.ranks_here = ranks_of.at(marks[static_cast<size_t>(rank)].host);
  const auto is_like_mine = [&](const auto& host) { return host.second == out.ranks_here; };
  out.is_regular = changes == ranks_of.size() && std::all_of(ranks_of.begin(), ranks_of.end(), is_like_mine);
  out.is_emulated = machines.size() < ranks_of.size();
  return out;
}

Status check_started(const RunOptions& o, const base::Env& env, const Surroundings& around) {
  const int ranks = around.started_ranks;
  const std::string there =
      base::format("{} rank{} started already ({})", ranks, ranks == 1 ? " was" : "s were", env.rank_source);
  if (!o.program.empty())
    return base::invalid_argument("-- {}: {}, wanted the program in place of overlace run", o.program.front(), there);
  if (o.threads) return base::invalid_argument("--threads: {}, wanted one of both", there);
  if (o.ranks && *o.ranks != ranks) return base::invalid_argument("--ranks is {}, but {}", *o.ranks, there);
  if (o.emulate_hosts && !env.host_id.starts_with(runtime::kEmulatedHost))
    return base::invalid_argument("--emulate-hosts is {}, but {}: it starts its own", *o.emulate_hosts, there);
  return {};
}

int run_started(const RunOptions& options, const base::Env& env, Surroundings around) {
  std::unique_ptr<Bootstrap> bootstrap;
  try {
    bootstrap = environment_bootstrap();
  } catch (...) {
    const RankFailure failure{env.rank, base::status_of_current_exception()};
    return print_failure(failure, {failure});
  }
  return run_with(*bootstrap, options, env, std::move(around));
}

}  // namespace overlace::cli
