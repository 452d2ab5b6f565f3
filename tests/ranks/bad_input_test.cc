// Bad calls of Runtime, Team, SymmetricHeap and Channel: the code and the exact text; afterwards the ranks go on.
#include <array>

#include "overlace/symmetric.h"
#include "overlace/team.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

struct BadCall {
  const char* name;
  void (*call)(Runtime&);
  Errc code;
  const char* text;  // RANK: who says it
};
void PrintTo(const BadCall& c, std::ostream* out) { *out << c.name; }

class BadInputRanks : public testing::TestWithParam<BadCall> {};

Channel& channel_of(Runtime& runtime) { return runtime.world().channel(StreamRef::cpu()); }
std::string text_of_error(const Error& error) { return std::string(errc_name(error.code())) + ": " + error.what(); }

/// Both ranks make the bad call, which moves nothing; then a good one.
TEST_P(BadInputRanks, IsRefusedInTheseWordsAndTheRanksGoOn) {
  const BadCall& c = GetParam();
  run_ranks(2, Mode::threads, [&](Runtime& runtime) {
    try {
      c.call(runtime);
      ADD_FAILURE() << "it was taken";
    } catch (const Error& error) {
      std::string text = c.text;
      if (const size_t at = text.find("RANK"); at != text.npos)
        text.replace(at, 4, std::to_string(runtime.world().rank()));
      EXPECT_EQ(text_of_error(error), std::string(errc_name(c.code)) + ": " + text);
    }
    EXPECT_EQ(runtime.world().exchange({}).size(), 2u);
  });
}

void sub(Runtime& runtime, std::initializer_list<int> ranks) {
  (void)runtime.world().sub(std::vector<int>(ranks), {.name = "pair"});
}

const BadCall kTeams[] = {
    {"ReachBeyondTeam", [](Runtime& r) { (void)r.world().reach(2); }, Errc::invalid_argument,
     "team.reach: peer is 2, wanted 0 to 1 (team \"world\")"},
    {"ReachNegative", [](Runtime& r) { (void)r.world().reach(-1); }, Errc::invalid_argument,
     "team.reach: peer is -1, wanted 0 to 1 (team \"world\")"},
    {"WorldRankBeyondTeam", [](Runtime& r) { (void)r.world().world_rank(7); }, Errc::invalid_argument,
     "team.world_rank: peer is 7, wanted 0 to 1 (team \"world\")"},
    {"PeerPointerBeyondTeam", [](Runtime& r) { (void)r.world().peer_ptr({}, 2); }, Errc::invalid_argument,
     "team.peer_ptr: peer is 2, wanted 0 to 1 (team \"world\")"},
    {"SubBeyondTeam",
     [](Runtime& r) {
       sub(r, {0, 2});
     },
     Errc::invalid_argument, "team.sub: peer is 2, wanted 0 to 1 (team \"world\")"},
    {"SubNegative", [](Runtime& r) { sub(r, {-1}); }, Errc::invalid_argument,
     "team.sub: peer is -1, wanted 0 to 1 (team \"world\")"},
    {"SubTwice",
     [](Runtime& r) {
       sub(r, {1, 1});
     },
     Errc::invalid_argument, "team.sub \"pair\": rank 1 is named twice in [1,1]"},
    {"SubDiffers", [](Runtime& r) { sub(r, {r.world().rank()}); }, Errc::plan_mismatch,
     "team.sub differs between ranks of team \"world\": rank 0 has [0] \"pair\" 0, rank 1 has [1] \"pair\" 0"},
    {"SubsWithoutEnd",
     [](Runtime& r) {
       for (int i = 0; i < 100; ++i) sub(r, {0, 1});
     },
     Errc::heap_exhausted, "signal ids exhausted: team \"pair\" asked 32, free 0, total 512; raise num_signal_ids"},
    {"ExchangeTooLong", [](Runtime& r) { (void)r.world().exchange(std::vector<std::byte>(65537)); },
     Errc::invalid_argument, "team.exchange: 65537 bytes, wanted at most 65536 a rank"},
    {"AgreeDiffers", [](Runtime& r) { r.world().agree(r.world().rank() == 0 ? "zero" : "one", "the number"); },
     Errc::plan_mismatch, "the number differs between ranks of team \"world\": rank 0 has zero, rank 1 has one"},
};

const BadCall kHeaps[] = {
    {"AllocWithoutAlign", [](Runtime& r) { (void)r.heap().alloc(64, 0, "x"); }, Errc::invalid_argument,
     "heap.alloc \"x\": align is 0, wanted a power of two <= 2 MiB"},
    {"AllocOddAlign", [](Runtime& r) { (void)r.heap().alloc(64, 48, "x"); }, Errc::invalid_argument,
     "heap.alloc \"x\": align is 48, wanted a power of two <= 2 MiB"},
    {"AllocAlignTooLarge", [](Runtime& r) { (void)r.heap().alloc(64, size_t{4} << 20, "x"); }, Errc::invalid_argument,
     "heap.alloc \"x\": align is 4194304, wanted a power of two <= 2 MiB"},
    {"AllocMoreThanThereIs", [](Runtime& r) { (void)r.heap().alloc(size_t{1} << 40, 256, "x"); }, Errc::heap_exhausted,
     "symmetric heap exhausted: \"x\" asked 1099511627776 bytes, largest free block 8388608, total 8388608, in use 0; "
     "raise heap_bytes"},
    {"AllocAlmostAllOf64Bits", [](Runtime& r) { (void)r.heap().alloc(~size_t{0}, 256, "x"); }, Errc::heap_exhausted,
     "symmetric heap exhausted: \"x\" asked 18446744073709551615 bytes, largest free block 8388608, total 8388608, in "
     "use 0; raise heap_bytes"},
    {"FreeOfNothing", [](Runtime& r) { r.heap().free({.offset = 123, .bytes = 64}); }, Errc::invalid_argument,
     "heap.free: no block starts at offset 123 (64 bytes); wanted one that alloc gave and that was not freed before"},
    {"AdoptNothing",
     [](Runtime& r) {
       std::array<void*, 2> peers{};
       (void)r.heap().adopt("x", nullptr, 64, peers);
     },
     Errc::invalid_argument, "heap.adopt \"x\": local is null, bytes is 64; wanted memory of at least one byte"},
    {"AdoptNoBytes",
     [](Runtime& r) {
       std::array<void*, 2> peers{};
       (void)r.heap().adopt("x", &peers, 0, peers);
     },
     Errc::invalid_argument, "heap.adopt \"x\": local is set, bytes is 0; wanted memory of at least one byte"},
    {"AdoptThreePeers",
     [](Runtime& r) {
       std::array<void*, 3> peers{};
       (void)r.heap().adopt("x", &peers, 8, peers);
     },
     Errc::invalid_argument, "heap.adopt \"x\": 3 peer addresses, wanted one for each of the 2 ranks of the world"},
    {"AdoptOwnAddressDiffers",
     [](Runtime& r) {
       std::array<void*, 2> peers{&peers, &peers};
       (void)r.heap().adopt("x", peers.data() + 1, 8, peers);
     },
     Errc::invalid_argument, "heap.adopt \"x\": peers[RANK] is this rank's own and must be `local`"},
    {"StripeWithoutParts", [](Runtime& r) { (void)r.heap().stripe({}, "x"); }, Errc::invalid_argument,
     "heap.stripe \"x\": 0 parts, wanted 1 to 2048"},
    {"StripeBeyondWorld",
     [](Runtime& r) {
       const StripePart part{.rank = 2, .bytes = 4096};
       (void)r.heap().stripe(std::span(&part, 1), "x");
     },
     Errc::invalid_argument, "heap.stripe \"x\": part 0 is for rank 2, wanted 0 to 1"},
    {"StripeOddBytes",
     [](Runtime& r) {
       const StripePart part{.rank = 0, .bytes = 100};
       (void)r.heap().stripe(std::span(&part, 1), "x");
     },
     Errc::invalid_argument, "heap.stripe \"x\": part 0 has 100 bytes, wanted a multiple of 4096"},
    {"FreeOfNoStripe", [](Runtime& r) { r.heap().free(StripedRange{}); }, Errc::invalid_argument,
     "heap.free: the striped range is not one of this runtime, or was freed before"},
};

const BadCall kChannels[] = {
    {"SmBudgetNegative", [](Runtime& r) { (void)r.world().channel(StreamRef::cpu(), {.sm_budget = -1}); },
     Errc::invalid_argument, "ChannelOptions::sm_budget is -1, wanted 0 (all SMs) or more"},
    {"SmLimitNegative", [](Runtime& r) { (void)channel_of(r).limit_sms(-1); }, Errc::invalid_argument,
     "channel.limit_sms: sms is -1, wanted 0 (no limit) or more"},
    {"UseOfACudaStream", [](Runtime& r) { channel_of(r).use(StreamRef::cuda(nullptr)); }, Errc::invalid_argument,
     "channel.use: a CUDA stream, wanted a CPU lane as before"},
    {"IdsOfDevices", [](Runtime& r) { (void)channel_of(r).ids(1, Domain::device, "x"); }, Errc::invalid_argument,
     "channel.ids \"x\": domain is device, wanted cpu on CPU ranks"},
    {"IdsWithoutEnd", [](Runtime& r) { (void)channel_of(r).ids(100000, Domain::cpu, "x"); }, Errc::heap_exhausted,
     "signal ids exhausted: \"x\" asked 100000, largest free range 252, total 256 of team \"world\"; raise "
     "num_signal_ids"},
    {"ReleaseOfForeignIds", [](Runtime& r) { channel_of(r).release(SignalIds{.first = 400, .count = 2}); },
     Errc::invalid_argument, "channel.release: ids 400..401 are not a range that this channel owns"},
    {"ReleaseOfHalfARange",
     [](Runtime& r) {
       const SignalIds ids = channel_of(r).ids(4, Domain::cpu, "x");
       channel_of(r).release(SignalIds{.first = ids.first, .count = 2});
     },
     Errc::invalid_argument, "channel.release: ids 4..5 are not a range that this channel owns"},
    {"InboxWithoutBuffers", [](Runtime& r) { (void)channel_of(r).inbox(64, 0, "x"); }, Errc::invalid_argument,
     "channel.inbox \"x\": k is 0, wanted 1 to 64 buffers"},
    {"InboxTooManyBuffers", [](Runtime& r) { (void)channel_of(r).inbox(64, 1 << 20, "x"); }, Errc::invalid_argument,
     "channel.inbox \"x\": k is 1048576, wanted 1 to 64 buffers"},
    {"InboxOfNothing", [](Runtime& r) { (void)channel_of(r).inbox(0, 2, "x"); }, Errc::invalid_argument,
     "channel.inbox \"x\": buffers of 0 bytes, wanted 1 to 4611686018427387903"},
    {"InboxAllOf64Bits", [](Runtime& r) { (void)channel_of(r).inbox(~size_t{0}, 2, "x"); }, Errc::invalid_argument,
     "channel.inbox \"x\": buffers of 18446744073709551615 bytes, wanted 1 to 4611686018427387903"},
    {"ReleaseOfForeignInbox", [](Runtime& r) { channel_of(r).release(Inbox{}); }, Errc::invalid_argument,
     "channel.release: the inbox at offset 0 is not one that this channel made, or was released before"},
    {"NoCounters", [](Runtime& r) { (void)channel_of(r).counters(0, "x"); }, Errc::invalid_argument,
     "channel.counters \"x\": count is 0, wanted 1 to 16777216"},
    {"TooManyCounters", [](Runtime& r) { (void)channel_of(r).counters(1u << 30, "x"); }, Errc::invalid_argument,
     "channel.counters \"x\": count is 1073741824, wanted 1 to 16777216"},
    {"ResetOfForeignCounters", [](Runtime& r) { channel_of(r).reset(Counters{}); }, Errc::invalid_argument,
     "channel.reset: the 0 counters are not ones that this channel made, or were released before"},
    {"ReleaseOfForeignCounters", [](Runtime& r) { channel_of(r).release(Counters{.count = 3}); },
     Errc::invalid_argument,
     "channel.release: the 3 counters are not ones that this channel made, or were released before"},
};

std::string name_of(const testing::TestParamInfo<BadCall>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Teams, BadInputRanks, testing::ValuesIn(kTeams), name_of);
INSTANTIATE_TEST_SUITE_P(Heaps, BadInputRanks, testing::ValuesIn(kHeaps), name_of);
INSTANTIATE_TEST_SUITE_P(Channels, BadInputRanks, testing::ValuesIn(kChannels), name_of);

struct BadOptions {
  const char* name;
  void (*change)(RuntimeOptions&);
  const char* text;
};
void PrintTo(const BadOptions& c, std::ostream* out) { *out << c.name; }

class BadOptionsRanks : public testing::TestWithParam<BadOptions> {};

TEST_P(BadOptionsRanks, AreRefusedAtOpen) {
  run_bootstraps(1, Mode::threads, [](Bootstrap& bootstrap) {
    RuntimeOptions options = runtime_options(Mode::threads, {});
    GetParam().change(options);
    try {
      (void)Runtime::open(bootstrap, options);
      ADD_FAILURE() << "they were taken";
    } catch (const Error& error) {
      EXPECT_EQ(text_of_error(error), std::string("invalid_argument: ") + GetParam().text);
    }
  });
}

const BadOptions kOptions[] = {
    {"TimeoutNegative", [](RuntimeOptions& o) { o.timeout_ms = -1; },
     "RuntimeOptions::timeout_ms is -1, wanted 1 to 86400000"},
    {"TimeoutTooLong", [](RuntimeOptions& o) { o.timeout_ms = 86400001; },
     "RuntimeOptions::timeout_ms is 86400001, wanted 1 to 86400000"},
    {"FewIds", [](RuntimeOptions& o) { o.num_signal_ids = 63; },
     "RuntimeOptions::num_signal_ids is 63, wanted 64 to 1048576"},
    {"ManyIds", [](RuntimeOptions& o) { o.num_signal_ids = ~0u; },
     "RuntimeOptions::num_signal_ids is 4294967295, wanted 64 to 1048576"},
    {"HeapTooLarge", [](RuntimeOptions& o) { o.heap_bytes = size_t{1} << 50; },
     "RuntimeOptions::heap_bytes is 1125899906842624, wanted 0 to 70368744177664"},
    {"EngineUnknown", [](RuntimeOptions& o) { o.net_engine = "gloo"; },
     "RuntimeOptions::net_engine is \"gloo\", wanted auto, nccl, mpi or none"},
};
INSTANTIATE_TEST_SUITE_P(Options, BadOptionsRanks, testing::ValuesIn(kOptions),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace overlace::test
