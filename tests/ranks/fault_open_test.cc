// A rank dies, stops or fails in each phase of Runtime::open: what the others see, how soon, and what is left.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <tuple>

#include "src/runtime/bootstrap/relay.h"
#include "src/runtime/phases.h"
#include "tests/ranks/support/faults.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

using runtime::Phase;

struct Place {
  Phase phase;
  const char* name;
};
constexpr Place kPlaces[] = {
    {Phase::bootstrap, "bootstrap"}, {Phase::connect, "connect"}, {Phase::introduce, "introduce"},
    {Phase::accept, "accept"},       {Phase::backend, "backend"}, {Phase::hello, "hello"},
    {Phase::heap, "heap"},           {Phase::mapping, "mapping"}, {Phase::descriptors, "descriptors"},
    {Phase::team, "team"},           {Phase::barrier, "barrier"}, {Phase::alive, "alive"},
    {Phase::open, "open"},
};

#if !defined(__SANITIZE_THREAD__)

class FaultOpenTest : public testing::TestWithParam<std::tuple<Place, Fault>> {};

/// Ranks above and below the one that fails: 1 of 4.
TEST_P(FaultOpenTest, TheOthersAreTold) {
  const auto [place, fault] = GetParam();
  RankOptions rank_options;
  rank_options.heap_bytes = 1 << 20;
  rank_options.num_signal_ids = 64;
  if (fault == Fault::stop) rank_options.timeout_ms = short_deadline_ms();
  const RuntimeOptions options = runtime_options(Mode::processes, rank_options);
  constexpr int kRanks = 4, kCulprit = 1;
  const auto body = [&, phase = place.phase](std::unique_ptr<Bootstrap> bootstrap,
                                             const std::function<void()>& happen) {
    runtime::set_phase_hook([&](Phase now, int rank) {
      if (now == phase && rank == kCulprit) happen();
    });
    Runtime runtime = Runtime::open(*bootstrap, options);
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const uint32_t id = channel.ids(1, Domain::cpu, "open.never").first;
    EXPECT_NE(wait_ge(channel.pod(), kCulprit, id, 1), Errc::ok);
    runtime.check();
  };
  const std::vector<Survivor> survivors = run_with_fault(kRanks, kCulprit, fault, body);
  expect_told(survivors, kCulprit, allowed_seconds(fault, rank_options.timeout_ms),
              {Errc::bootstrap, Errc::peer_lost, Errc::timeout, Errc::aborted},
              std::string(place.name) + " " + fault_name(fault));
  for (const Survivor& s : survivors) {
    // Before anybody is connected, and once the runtime exists, leaving is all there is to see.
    const bool is_told_why = fault == Fault::fail && place.phase > Phase::bootstrap && place.phase < Phase::team;
    EXPECT_TRUE(!is_told_why || s.text.find(kFailure) != std::string::npos) << place.name << ": " << s.text;
  }
}

INSTANTIATE_TEST_SUITE_P(Phases, FaultOpenTest,
                         testing::Combine(testing::ValuesIn(kPlaces),
                                          testing::Values(Fault::kill, Fault::exit, Fault::stop, Fault::fail)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_" + fault_name(std::get<1>(test.param));
                         });

/// Where ranks were started one by one, rank 0 serves their all-gathers: nobody is there to say that it is gone.
class FaultServingTest : public testing::TestWithParam<Fault> {};

TEST_P(FaultServingTest, TheOthersNameRankZero) {
  const Fault fault = GetParam();
  RankOptions rank_options;
  if (fault == Fault::stop) rank_options.timeout_ms = short_deadline_ms();
  constexpr int kRanks = 3, kCulprit = 0;
  const auto body = [&](std::unique_ptr<Bootstrap> launched, const std::function<void()>& happen) {
    const std::string name = launched->token() + ".served";
    const int rank = launched->rank();
    std::unique_ptr<runtime::RelayThread> server;
    if (rank == kCulprit)
      server = std::make_unique<runtime::RelayThread>(std::move(runtime::RelayServer::open(name, "", kRanks).value()));
    const auto bootstrap =
        std::move(runtime::relay_bootstrap(name, "", rank, kRanks, rank_options.timeout_ms, "rank 0").value());
    bootstrap->barrier(10000);
    runtime::set_phase_hook([&](Phase now, int at) {
      if (now == Phase::bootstrap && at == kCulprit) happen();
    });
    if (rank == kCulprit) std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the others wait by then
    (void)Runtime::open(*bootstrap, runtime_options(Mode::processes, rank_options));
  };
  expect_told(run_with_fault(kRanks, kCulprit, fault, body), kCulprit, allowed_seconds(fault, rank_options.timeout_ms),
              {Errc::bootstrap}, std::string("serving ") + fault_name(fault));
}

INSTANTIATE_TEST_SUITE_P(Faults, FaultServingTest, testing::Values(Fault::kill, Fault::exit, Fault::stop, Fault::fail),
                         [](const auto& test) { return std::string(fault_name(test.param)); });

/// A rank that loses its processor between connect() and its first packet was taken for a stranger after a second.
TEST(FaultOpen, ALateIntroductionIsNoStranger) {
  run_bootstraps(4, Mode::processes, [](Bootstrap& bootstrap) {
    runtime::set_phase_hook([](Phase phase, int rank) {
      if (phase == Phase::introduce && rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1300));
    });
    Runtime runtime = Runtime::open(bootstrap, runtime_options(Mode::processes, {}));
    runtime.world().barrier();
    runtime.close();
  });
}

#endif

/// All ranks of an open that fails on one of them in the same way see the same words, whoever notices first.
TEST(FaultOpen, ThreadsAreToldToo) {
  for (const Place& place : kPlaces) {
    if (place.phase == Phase::connect || place.phase == Phase::introduce || place.phase == Phase::accept ||
        place.phase == Phase::descriptors || place.phase == Phase::mapping || place.phase >= Phase::barrier)
      continue;
    runtime::set_phase_hook([&](Phase now, int rank) {
      if (now == place.phase && rank == 1) throw IoError(Errc::io, kFailure);
    });
    run_bootstraps(3, Mode::threads, [&](Bootstrap& bootstrap) {
      RankOptions rank_options;
      rank_options.timeout_ms = 10000;
      try {
        (void)Runtime::open(bootstrap, runtime_options(Mode::threads, rank_options));
        ADD_FAILURE() << place.name << ": nothing was thrown";
      } catch (const Error& error) {
        const std::string text = error.what();
        const std::string wanted = bootstrap.rank() == 1 ? kFailure : "rank 1";
        EXPECT_NE(text.find(wanted), std::string::npos) << place.name << ": " << text;
      }
    });
    runtime::set_phase_hook({});
  }
}

}  // namespace
}  // namespace overlace::test
