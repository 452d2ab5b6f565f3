// A rank dies, stops, leaves or fails before, in and after a call of an operator.
#include <atomic>
#include <string>
#include <tuple>

#include "src/runtime/backend/cpu/observer.h"
#include "tests/ranks/ops_cases.h"
#include "tests/ranks/support/faults.h"

namespace overlace::test {
namespace {

using runtime::Step;

#if !defined(__SANITIZE_THREAD__)

enum class Place { before, first_put, first_signal, wait, after };
constexpr const char* kPlaceNames[] = {"before", "first_put", "first_signal", "wait", "after"};

/// Lets the fault happen at the first step of a kind.
class FailAt final : public runtime::Observer {
 public:
  FailAt(Step::Kind kind, std::function<void()> happen) : kind_(kind), happen_(std::move(happen)) {}
  bool before(const Step& step) override {
    if (step.kind == kind_) happen_();
    return true;
  }

 private:
  const Step::Kind kind_;
  const std::function<void()> happen_;
};

/// An operator with a schedule of its own signals, and one of the engine's collectives.
struct Op {
  const char *op, *family;
};

class FaultOperatorTest : public testing::TestWithParam<std::tuple<Op, Place, Fault>> {};

TEST_P(FaultOperatorTest, TheOthersAreTold) {
  const auto [op, place, fault] = GetParam();
  RankOptions rank_options;
  if (fault == Fault::stop) rank_options.timeout_ms = short_deadline_ms();
  constexpr int kRanks = 3, kCulprit = 1;
  const Case c{.op = op.op, .family = op.family, .degree = 2, .m = 12};
  const auto body = [&, where = place, how = fault](std::unique_ptr<Bootstrap> bootstrap,
                                                    const std::function<void()>& happen) {
    Runtime runtime = Runtime::open(*bootstrap, runtime_options(Mode::processes, rank_options));
    Team& team = runtime.world();
    Operands operands(c, team.channel(StreamRef::cpu()));
    operands.fill(1);
    operands.run();
    EXPECT_EQ(operands.mismatch(), "");
    team.barrier();
    const bool is_culprit = team.rank() == kCulprit;
    const auto fail_here = [&] {
      if (how == Fault::fail) runtime.abort(Errc::io, kFailure);
      happen();
    };
    const Step::Kind kinds[] = {{}, Step::Kind::put, Step::Kind::add, Step::Kind::wait, {}};
    FailAt observer(kinds[static_cast<size_t>(where)], fail_here);
    if (is_culprit && where == Place::before) fail_here();
    if (is_culprit && where != Place::after) runtime::observe(runtime, &observer);
    for (int64_t call = 2; call < 1000; ++call) {
      operands.fill(call);
      operands.run();
      if (is_culprit && where == Place::after) fail_here();
    }
  };
  const std::vector<Survivor> survivors = run_with_fault(kRanks, kCulprit, fault, body);
  const std::string name = std::string(op.op) + " " + kPlaceNames[static_cast<size_t>(place)] + " " + fault_name(fault);
  const std::vector<Errc> codes = fault == Fault::stop   ? std::vector{Errc::timeout, Errc::aborted}
                                  : fault == Fault::fail ? std::vector{Errc::aborted}
                                                         : std::vector{Errc::peer_lost};
  expect_told(survivors, kCulprit, allowed_seconds(fault, rank_options.timeout_ms), codes, name);
  for (const Survivor& s : survivors) {
    // A rank that stopped may be waited for in a signal or in the wire's delivery; then both numbers are shown.
    const std::vector<std::string> parts = fault == Fault::stop
                                               ? std::vector<std::string>{"timeout after ", "expected >= ", "seen "}
                                           : fault == Fault::fail ? std::vector<std::string>{kFailure}
                                           : fault == Fault::exit ? std::vector<std::string>{"(pid ", "state left"}
                                                                  : std::vector<std::string>{"(pid ", "state alive"};
    for (const std::string& part : parts) EXPECT_NE(s.text.find(part), std::string::npos) << name << ": " << s.text;
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, FaultOperatorTest,
                         testing::Combine(testing::Values(Op{"ag_gemm", "hetero_fused_1d"},
                                                          Op{"gemm_rs", "uniform_fused_2d"}, Op{"gemm_ar", "library"}),
                                          testing::Values(Place::before, Place::first_put, Place::first_signal,
                                                          Place::wait, Place::after),
                                          testing::Values(Fault::kill, Fault::exit, Fault::stop, Fault::fail)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).op) + "_" +
                                  kPlaceNames[static_cast<size_t>(std::get<1>(test.param))] + "_" +
                                  fault_name(std::get<2>(test.param));
                         });

#else
TEST(FaultOperator, NeedsProcesses) { GTEST_SKIP() << "ranks that die are processes; under this sanitizer threads"; }
#endif

}  // namespace
}  // namespace overlace::test
