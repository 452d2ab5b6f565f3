#include "overlace/error.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <new>
#include <set>
#include <sstream>
#include <typeinfo>

#include "src/base/status.h"

namespace overlace {
namespace {

constexpr int kNumCodes = static_cast<int>(Errc::internal) + 1;

struct Row {
  Errc code;
  const char* name;
  int exit;
  const char* exception;
};

// docs/reference/errors.md, row by row.
const Row kRows[] = {
    {Errc::ok, "ok", 0, nullptr},
    {Errc::invalid_argument, "invalid_argument", 2, "InvalidArgument"},
    {Errc::layout_mismatch, "layout_mismatch", 2, "InvalidArgument"},
    {Errc::closed, "closed", 2, "InvalidArgument"},
    {Errc::forked, "forked", 2, "InvalidArgument"},
    {Errc::capture, "capture", 2, "InvalidArgument"},
    {Errc::bad_schedule, "bad_schedule", 2, "ScheduleError"},
    {Errc::plan_mismatch, "plan_mismatch", 2, "PlanMismatch"},
    {Errc::not_supported, "not_supported", 3, "Unsupported"},
    {Errc::co_residency, "co_residency", 3, "Unsupported"},
    {Errc::version_mismatch, "version_mismatch", 3, "Unsupported"},
    {Errc::timeout, "timeout", 4, "Timeout"},
    {Errc::peer_lost, "peer_lost", 4, "PeerLost"},
    {Errc::aborted, "aborted", 4, "PeerLost"},
    {Errc::bootstrap, "bootstrap", 4, "PeerLost"},
    {Errc::desync, "desync", 4, "Desync"},
    {Errc::io, "io", 5, "IoError"},
    {Errc::corrupt, "corrupt", 5, "IoError"},
    {Errc::stale, "stale", 5, "IoError"},
    {Errc::cuda, "cuda", 6, "CudaError"},
    {Errc::engine, "engine", 6, "EngineError"},
    {Errc::heap_exhausted, "heap_exhausted", 7, "OutOfMemory"},
    {Errc::out_of_memory, "out_of_memory", 7, "OutOfMemory"},
    {Errc::non_finite, "non_finite", 1, "NonFinite"},
    {Errc::internal, "internal", 70, "Internal"},
};

template <class E>
bool throws_exactly(Errc code, const std::string& text) {
  try {
    throw_error(code, text);
  } catch (const Error& e) {
    return typeid(e) == typeid(E) && e.code() == code && e.what() == text;
  }
}

bool throws_class(const std::string& name, Errc code) {
  const std::string text = "what happened to " + name;
  if (name == "InvalidArgument") return throws_exactly<InvalidArgument>(code, text);
  if (name == "ScheduleError") return throws_exactly<ScheduleError>(code, text);
  if (name == "PlanMismatch") return throws_exactly<PlanMismatch>(code, text);
  if (name == "Unsupported") return throws_exactly<Unsupported>(code, text);
  if (name == "Timeout") return throws_exactly<Timeout>(code, text);
  if (name == "PeerLost") return throws_exactly<PeerLost>(code, text);
  if (name == "Desync") return throws_exactly<Desync>(code, text);
  if (name == "IoError") return throws_exactly<IoError>(code, text);
  if (name == "CudaError") return throws_exactly<CudaError>(code, text);
  if (name == "EngineError") return throws_exactly<EngineError>(code, text);
  if (name == "OutOfMemory") return throws_exactly<OutOfMemory>(code, text);
  if (name == "NonFinite") return throws_exactly<NonFinite>(code, text);
  return name == "Internal" && throws_exactly<Internal>(code, text);
}

TEST(Error, EachCodeHasItsNameExitStatusAndClass) {
  ASSERT_EQ(std::size(kRows), static_cast<size_t>(kNumCodes));
  for (const Row& row : kRows) {
    EXPECT_EQ(errc_name(row.code), row.name);
    EXPECT_EQ(exit_code(row.code), row.exit) << row.name;
    if (row.exception == nullptr) continue;
    EXPECT_TRUE(throws_class(row.exception, row.code)) << row.name;
  }
}

TEST(Error, NamesAreDistinctAndUnknownCodesHaveOne) {
  std::set<std::string_view> names;
  for (int i = 0; i < kNumCodes; ++i) names.insert(errc_name(static_cast<Errc>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kNumCodes));
  EXPECT_EQ(errc_name(static_cast<Errc>(kNumCodes)), "unknown");
  EXPECT_EQ(errc_name(static_cast<Errc>(-1)), "unknown");
  EXPECT_EQ(exit_code(static_cast<Errc>(kNumCodes)), 70);
}

TEST(Error, ScheduleErrorsAreInvalidArguments) {
  EXPECT_THROW(throw_error(Errc::bad_schedule, "x"), InvalidArgument);
  EXPECT_THROW(throw_error(Errc::plan_mismatch, "x"), InvalidArgument);
}

TEST(Error, ReferencePageListsEachCodeWithItsExitStatus) {
  std::ifstream file(OVERLACE_SOURCE_DIR "/docs/reference/errors.md");
  ASSERT_TRUE(file.good());
  std::map<std::string, std::pair<std::string, std::string>> documented;  // code -> (class, exit)
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("| `")) continue;
    std::istringstream cells(line.substr(1));
    std::string code, exception, exit;
    std::getline(cells, code, '|');
    std::getline(cells, exception, '|');
    std::getline(cells, exit, '|');
    const auto bare = [](std::string text) {
      std::erase_if(text, [](char c) { return c == '`' || c == ' '; });
      return text;
    };
    documented[bare(code)] = {bare(exception), bare(exit)};
  }
  EXPECT_EQ(documented.size(), std::size(kRows) - 1);
  for (const Row& row : kRows) {
    if (row.code == Errc::ok) continue;
    ASSERT_TRUE(documented.contains(row.name)) << row.name;
    EXPECT_EQ(documented[row.name].first, row.exception) << row.name;
    EXPECT_EQ(documented[row.name].second, std::to_string(row.exit)) << row.name;
  }
}

TEST(Status, CarriesCodeAndMessage) {
  EXPECT_TRUE(base::Status().ok());
  EXPECT_NO_THROW(base::Status().or_throw());
  const base::Status status = base::error(Errc::io, "{}: {}", "a.json", "is a directory");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), Errc::io);
  EXPECT_EQ(status.message(), "a.json: is a directory");
  EXPECT_THROW(status.or_throw(), IoError);
  EXPECT_EQ(base::invalid_argument("m is {}", -1).code(), Errc::invalid_argument);
}

TEST(Status, ResultGivesItsValueOrThrowsItsStatus) {
  const base::Result<std::string> good(std::string("text"));
  EXPECT_TRUE(good.ok());
  EXPECT_EQ(*good, "text");
  EXPECT_EQ(good->size(), 4u);
  base::Result<std::string> bad(base::error(Errc::timeout, "after 3 s"));
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().message(), "after 3 s");
  EXPECT_THROW(bad.value(), Timeout);
}

TEST(Status, TryLeavesWithTheFirstFailure) {
  int reached = 0;
  const auto run = [&](bool fail) -> base::Status {
    OVERLACE_TRY(fail ? base::invalid_argument("first") : base::Status());
    ++reached;
    return {};
  };
  EXPECT_EQ(run(true).message(), "first");
  EXPECT_EQ(reached, 0);
  EXPECT_TRUE(run(false).ok());
  EXPECT_EQ(reached, 1);
}

base::Status status_of(const std::function<void()>& thrower) {
  try {
    thrower();
  } catch (...) {
    return base::status_of_current_exception();
  }
  return {};
}

TEST(Status, TranslatesExceptions) {
  const base::Status own = status_of([] { throw Desync(Errc::desync, "rank 1 called gemm_rs"); });
  EXPECT_EQ(own.code(), Errc::desync);
  EXPECT_EQ(own.message(), "rank 1 called gemm_rs");
  EXPECT_EQ(status_of([] { throw std::bad_alloc(); }).code(), Errc::out_of_memory);
  EXPECT_EQ(status_of([] { throw std::runtime_error("odd"); }).message(), "odd");
  EXPECT_EQ(status_of([] { throw 7; }).code(), Errc::internal);
}

TEST(Status, FailedAssertIsInternalAndNamesThePlace) {
  const base::Status status = status_of([] { OVERLACE_ASSERT(1 + 1 == 3); });
  EXPECT_EQ(status.code(), Errc::internal);
  EXPECT_NE(status.message().find("1 + 1 == 3"), std::string::npos);
  EXPECT_NE(status.message().find("error_test.cc:"), std::string::npos);
}

TEST(Format, PutsArgumentsIntoTheText) {
  EXPECT_EQ(base::format("plain"), "plain");
  EXPECT_EQ(base::format("{} {} {} {} {}", 1, 2u, 2.5, true, 'c'), "1 2 2.5 true c");
  EXPECT_EQ(base::format("{1}{0}", std::string("a"), std::string_view("b")), "ba");
  EXPECT_EQ(base::format("{:.1f} {:>4} {:08x}", 1.25f, "x", uint64_t{255}), "1.2    x 000000ff");
  EXPECT_EQ(base::format("{}", std::numeric_limits<int64_t>::min()), "-9223372036854775808");
  EXPECT_EQ(base::format("{{}}"), "{}");
}

TEST(Format, BadTextIsOurBug) {
  EXPECT_THROW(base::format("{} {}", 1), Internal);
  EXPECT_THROW(base::format("{"), Internal);
  EXPECT_THROW(base::format("{:d}", "text"), Internal);
}

}  // namespace
}  // namespace overlace
