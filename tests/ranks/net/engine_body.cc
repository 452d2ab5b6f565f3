// Engine mpi, whatever the hosts are.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <vector>

#include "overlace/error.h"
#include "overlace/net_engine.h"
#include "src/base/env.h"
#include "src/base/half.h"
#include "tests/ranks/net/body.h"

namespace overlace::test {
namespace {

const StreamRef kCpu = StreamRef::cpu();

/// Distinct per rank and index; sums over ranks are exact in fp32.
float value(int rank, size_t i) { return static_cast<float>(rank * 65536 + static_cast<int>(i) + 1); }

std::vector<float> filled(int rank, size_t count) {
  std::vector<float> data(count);
  for (size_t i = 0; i < count; ++i) data[i] = value(rank, i);
  return data;
}

void all_collectives(Team& team, size_t n) {
  NetEngine& net = *team.net();
  const int size = team.size(), rank = team.rank();
  const auto ranks = static_cast<size_t>(size);
  std::vector<float> mine = filled(rank, n), all(n * ranks), wide = filled(rank, n * ranks), out(n);

  net.all_gather(mine.data(), all.data(), n, DType::fp32, kCpu);
  for (size_t r = 0; r < ranks; ++r)
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(all[r * n + i], value(static_cast<int>(r), i)) << r << " " << i;

  const auto sum = [&](size_t i) {
    float want = 0;
    for (int r = 0; r < size; ++r) want += value(r, i);
    return want;
  };
  net.reduce_scatter(wide.data(), out.data(), n, DType::fp32, kCpu);
  for (size_t i = 0; i < n; ++i) ASSERT_EQ(out[i], sum(static_cast<size_t>(rank) * n + i)) << i;
  net.all_reduce(mine.data(), out.data(), n, DType::fp32, kCpu);
  for (size_t i = 0; i < n; ++i) ASSERT_EQ(out[i], sum(i)) << i;

  net.all_to_all(wide.data(), all.data(), n, DType::fp32, kCpu);
  for (size_t r = 0; r < ranks; ++r)
    for (size_t i = 0; i < n; ++i)
      ASSERT_EQ(all[r * n + i], value(static_cast<int>(r), static_cast<size_t>(rank) * n + i)) << r << " " << i;

  std::vector<float> told = rank == size - 1 ? mine : std::vector<float>(n);
  net.broadcast(told.data(), n, DType::fp32, size - 1, kCpu);
  EXPECT_EQ(told, filled(size - 1, n));
  std::vector<float> total(n, -1);
  net.reduce(mine.data(), total.data(), n, DType::fp32, 0, kCpu);
  for (size_t i = 0; i < n; ++i) ASSERT_EQ(total[i], rank == 0 ? sum(i) : -1) << i;

  // To the next, from the one before, both with themselves, in one group.
  std::vector<float> from(n), own(n);
  net.group_begin();
  net.send(mine.data(), n * sizeof(float), (rank + 1) % size, kCpu);
  net.recv(from.data(), n * sizeof(float), (rank + size - 1) % size, kCpu);
  net.send(mine.data(), n * sizeof(float), rank, kCpu);
  net.recv(own.data(), n * sizeof(float), rank, kCpu);
  net.group_end();
  EXPECT_EQ(from, filled((rank + size - 1) % size, n));
  EXPECT_EQ(own, mine);
}

TEST(Engine, CollectivesOfTheWorldAndOfTeams) {
  const auto bootstrap = environment_bootstrap();
  Runtime runtime = Runtime::open(*bootstrap, net_options());
  ASSERT_NE(runtime.world().net(), nullptr);
  ASSERT_EQ(runtime.world().net()->name(), "mpi");
  ASSERT_NE(runtime.world().net()->version().find("mpi"), std::string::npos) << runtime.world().net()->version();
  for (const size_t n : {size_t{0}, size_t{1}, size_t{4099}, size_t{1500000}}) all_collectives(runtime.world(), n);
  std::vector<int> backwards;
  for (int r = runtime.world().size() - 1; r >= 0; --r) backwards.push_back(r);
  Team turned = runtime.world().sub(backwards, {.name = "turned"});
  all_collectives(turned, 33);
  all_collectives(runtime.world(), 5);
  runtime.close();
  // MPI outlives a runtime.
  Runtime second = Runtime::open(*bootstrap, net_options());
  all_collectives(second.world(), 7);
  second.close();
}

TEST(Engine, SumsOf16BitFloatsHaveTheBitsOfEngineReference) {
  const auto bootstrap = environment_bootstrap();
  Runtime runtime = Runtime::open(*bootstrap, net_options());
  RuntimeOptions options = net_options();
  options.net_engine = "auto";
  Runtime reference = Runtime::open(*bootstrap, options);
  ASSERT_EQ(reference.world().net()->name(), "reference");
  const size_t n = 5001;
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32, DType::fp64}) {
    std::vector<char> mine(n * 8), a(n * 8), b(n * 8);
    for (size_t i = 0; i < n; ++i)
      base::store_element(mine.data(), dtype, static_cast<int64_t>(i),
                          100 * std::sin(static_cast<double>(i) * 1.7 + runtime.world().rank()));
    runtime.world().net()->all_reduce(mine.data(), a.data(), n, dtype, kCpu);
    reference.world().net()->all_reduce(mine.data(), b.data(), n, dtype, kCpu);
    EXPECT_EQ(a, b) << dtype_name(dtype);
  }
  reference.close();
  runtime.close();
}

/// What `call` throws; "" if nothing.
template <class Call>
std::string thrown(Errc code, Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "";
}

/// A function of the MPI that started this process.
template <class Function>
Function mpi_function(const char* name) {
  const char* const library = base::env().rank_source == "openmpi" ? "libmpi.so.40" : "libmpich.so.12";
  void* const handle = ::dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  return handle == nullptr ? nullptr : reinterpret_cast<Function>(::dlsym(handle, name));
}

TEST(Engine, StartedByTheCaller) {
  const auto start = mpi_function<int (*)(int*, char***, int, int*)>("MPI_Init_thread");
  const auto end = mpi_function<int (*)()>("MPI_Finalize");
  ASSERT_TRUE(start != nullptr && end != nullptr);
  int level = 0;
  constexpr int kMultiple = 3;
  ASSERT_EQ(start(nullptr, nullptr, kMultiple, &level), 0);
  ASSERT_EQ(level, kMultiple);
  {
    const auto bootstrap = environment_bootstrap();
    Runtime runtime = Runtime::open(*bootstrap, net_options());
    all_collectives(runtime.world(), 9);
    runtime.close();
  }
  EXPECT_EQ(end(), 0);  // it is the caller's to end
}

TEST(Engine, StartedByTheCallerForOneThread) {
  const auto start = mpi_function<int (*)(int*, char***)>("MPI_Init");
  const auto end = mpi_function<int (*)()>("MPI_Finalize");
  ASSERT_TRUE(start != nullptr && end != nullptr);
  ASSERT_EQ(start(nullptr, nullptr), 0);
  const auto bootstrap = environment_bootstrap();
  const std::string text = thrown(Errc::not_supported, [&] { (void)Runtime::open(*bootstrap, net_options()); });
  EXPECT_NE(text.find("without MPI_THREAD_MULTIPLE"), std::string::npos) << text;
  EXPECT_EQ(end(), 0);
}

TEST(Engine, BadArguments) {
  const auto bootstrap = environment_bootstrap();
  Runtime runtime = Runtime::open(*bootstrap, net_options());
  NetEngine& net = *runtime.world().net();
  char byte = 0;
  EXPECT_NE(thrown(Errc::invalid_argument, [&] { net.send(&byte, 1, 9, kCpu); }).find("send: peer is 9, wanted 0 to 1"),
            std::string::npos);
  EXPECT_NE(thrown(Errc::not_supported, [&] { net.all_reduce(&byte, &byte, 1, DType::e4m3, kCpu); }).find("e4m3"),
            std::string::npos);
  EXPECT_NE(thrown(Errc::invalid_argument, [&] { net.group_end(); }).find("group_begin"), std::string::npos);
  runtime.close();
}

TEST(Engine, DifferentCallsAreNamed) {
  const auto bootstrap = environment_bootstrap();
  Runtime runtime = Runtime::open(*bootstrap, net_options());
  NetEngine& net = *runtime.world().net();
  const size_t count = runtime.world().rank() == 0 ? 8 : 9;
  std::vector<float> a(9), b(18);
  const std::string text = [&]() -> std::string {
    try {
      net.all_gather(a.data(), b.data(), count, DType::fp32, kCpu);
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == Errc::engine || error.code() == Errc::aborted) << error.what();
      return error.what();
    }
    return "";
  }();
  EXPECT_NE(text.find("all_gather of 8 fp32"), std::string::npos) << text;
  EXPECT_NE(text.find("all_gather of 9 fp32"), std::string::npos) << text;
}

TEST(Engine, AMessageThatDoesNotComeEndsAtTheDeadline) {
  const auto bootstrap = environment_bootstrap();
  Runtime runtime = Runtime::open(*bootstrap, net_options(700));
  NetEngine& net = *runtime.world().net();
  float data = 0;
  if (runtime.world().rank() == 0) {
    const std::string text = thrown(Errc::timeout, [&] { net.recv(&data, sizeof data, 1, kCpu); });
    for (const char* part : {"timeout after 0.7 s", "rank 0 waited for rank 1", "team \"world\"", "mpi.message"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  } else {
    const std::string text = thrown(Errc::aborted, [&] {
      for (int i = 0; i < 10000; ++i, ::usleep(1000)) runtime.check();
    });
    EXPECT_NE(text.find("rank 0 waited for rank 1"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace overlace::test
