// Rows of the bench of fused operators, their print and their records.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace overlace::bench {

/// ag: A is gathered, N and B are a rank's own. rs: rows of the sum over ranks, K, A and B are a rank's own.
enum class Op { ag, rs };

/// One GEMM: M rows of all ranks. `offsets` is empty where the rows are shared equally.
struct Case {
  Op op = Op::ag;
  std::string name;
  int64_t m = 0, n = 0, k = 0;
  std::string instance;
  std::vector<int64_t> offsets{};
};
std::string title(const Case& c);

struct Options {
  bool smoke = false, shared = false;  // shared: ranks are threads on one GPU
  bool call_events = false;            // each kernel also with an event behind each call
  int sms = 0;                         // of each rank, with `shared`
  int ranks = 0, rounds = 7;
  double burst_ms = 20;
  std::string ops, rows, out;  // ops: ag, rs, or empty for both
};

struct Timed {
  std::string name;
  std::vector<double> us{};  // worst rank, per call and burst; empty: verified only
  double host_us = 0;        // worst rank, to queue a call
  double max_error = 0;      // of rank 0, against fp64, of the rms
  bool is_wrong = false;     // by intent: traffic without waiting; never verified, no competitor
};
struct Outcome {
  Case of;
  std::vector<Timed> variants;
};

void print(const Outcome& outcome);
/// Writes all of them to `options.out`; throws.
void save(const std::vector<Outcome>& outcomes, const Options& options);

}  // namespace overlace::bench
