// What runs and what is simulated are the same work: same ids, kinds, bytes and operations on every rank.
#include "overlace/sim.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "src/base/trace.h"
#include "src/exec/run.h"
#include "src/sim/trace/trace.h"
#include "tests/ranks/ops_cases.h"
#include "tests/unit/spec/operators.h"

namespace overlace::test {
namespace {

/// The timeline of the second call on 2 CPU ranks, and its schedule.
base::Trace traced(const Case& c, spec::Schedule* schedule) {
  std::mutex mutex;
  base::Trace trace;
  run_ranks(2, Mode::threads, [&](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    Operands operands(c, channel);
    operands.fill(1);
    operands.run();
    base::Trace mine;
    exec::set_trace(channel, &mine);
    operands.run();
    exec::set_trace(channel, nullptr);
    const std::lock_guard lock(mutex);
    trace.merge(std::move(mine));
    if (runtime.world().rank() == 0) *schedule = operands.schedule();
  });
  return trace;
}

void expect_spans_of_a_run(const Case& c) {
  SCOPED_TRACE(c.text());
  spec::Schedule schedule;
  const base::Trace measured = traced(c, &schedule);
  sim::SimOptions options;
  options.has_spans = true;
  const base::Trace simulated = sim::to_trace(sim::simulate(schedule, spec::find_machine("cpu2"), options), "");
  const base::Result<sim::TraceDiff> diff = sim::diff_traces(measured, simulated);
  ASSERT_TRUE(diff.ok()) << diff.status().message();
  EXPECT_GE(diff->rows.size(), 2u);
  std::map<std::pair<int, std::string>, const base::Span*> by_id;
  for (const base::Span& span : measured.spans) by_id[{span.rank, span.name}] = &span;
  for (const base::Span& span : simulated.spans) {
    if (span.category == "wait") continue;
    const base::Span& other = *by_id.at({span.rank, span.name});
    EXPECT_EQ(span.lane, other.lane) << span.name;
    EXPECT_EQ(span.category, other.category) << span.name;
    EXPECT_EQ(span.bytes, other.bytes) << span.name;
    EXPECT_EQ(span.flops, other.flops) << span.name;
  }
}

TEST(Sim, HasTheSpansOfARun) {
  for (const std::string& op : test::all_operators()) {
    for (const std::string& family : spec::families(op)) {
      Case c{.op = op, .family = family, .degree = 2, .m = 24, .n = 16, .k = 8};
      ASSERT_NO_FATAL_FAILURE(expect_spans_of_a_run(c));
      if (!spec::exchanges(op)) continue;
      exchange_columns(&c, 2, 5);  // three blocks
      ASSERT_NO_FATAL_FAILURE(expect_spans_of_a_run(c));
    }
  }
}

}  // namespace
}  // namespace overlace::test
