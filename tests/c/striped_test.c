// Striped matrices of the C API: stores that land at their owners, sums and rows of all ranks, and what a caller can do
// wrong.
#include "overlace/capi_striped.h"
#include "tests/c/threads.h"

enum { kRows = 4, kCols = 256, kRounds = 5 };  // a block of fp32 is one page of 4 KiB

static float element(int rank, int round, int row, int col) {
  return (float)((rank * 7 + round * 3 + row * 5 + col) % 11 - 5);
}

static void fill(const ovl_tensor* out, int rank, int round) {
  for (int row = 0; row < kRanks * kRows; ++row)
    for (int col = 0; col < kCols; ++col)
      ((float*)out->data)[row * out->strides[0] + col] = element(rank, round, row, col);
}

static void striped_body(ovl_runtime* runtime, ovl_team* team, int rank) {
  (void)runtime;
  static float sums[kRanks][kRows * kCols], rows[kRanks][kRanks * kRows * kCols];
  ovl_channel* channel = NULL;
  ovl_striped* striped = NULL;
  ovl_stripe_spec spec = OVL_INIT(ovl_stripe_spec);
  spec.rows = kRows, spec.cols = kCols, spec.dtype = OVL_FP32;
  EXPECT_OK_RANK(rank, ovl_channel_open(team, NULL, 0, &channel));
  EXPECT_OK_RANK(rank, ovl_stripe(channel, &spec, "c", &striped));
  int64_t owned = 0;
  EXPECT_OK_RANK(rank, ovl_stripe_rows(striped, &owned));
  CHECK_RANK(rank, owned == kRows);
  ovl_tensor sum, all;
  EXPECT_OK_RANK(rank, ovl_matrix(sums[rank], OVL_FP32, kRows, kCols, &sum));
  EXPECT_OK_RANK(rank, ovl_matrix(rows[rank], OVL_FP32, kRanks * kRows, kCols, &all));
  for (int round = 0; round < kRounds; ++round) {
    ovl_tensor out;
    int turn = -1, wrong = 0;
    EXPECT_OK_RANK(rank, ovl_stripe_out(striped, &out, &turn));
    CHECK_RANK(rank, turn == round % 2 && out.ndim == 2 && out.sizes[0] == kRanks * kRows && out.sizes[1] == kCols);
    fill(&out, rank, round);
    if (round % 3 == 2) {
      EXPECT_OK_RANK(rank, ovl_stripe_all_to_all(striped, all));
      for (int row = 0; row < kRanks * kRows; ++row)
        for (int col = 0; col < kCols; ++col)
          wrong += rows[rank][row * kCols + col] != element(row / kRows, round, rank * kRows + row % kRows, col);
    } else {
      EXPECT_OK_RANK(rank, ovl_stripe_reduce_scatter(striped, sum));
      for (int row = 0; row < kRows; ++row)
        for (int col = 0; col < kCols; ++col)
          wrong += sums[rank][row * kCols + col] !=
                   element(0, round, rank * kRows + row, col) + element(1, round, rank * kRows + row, col);
    }
    CHECK_RANK(rank, wrong == 0);
  }
  const ovl_stripe_part* parts = NULL;
  int count = 0;
  EXPECT_OK_RANK(rank, ovl_stripe_parts(striped, 0, 0, &parts, &count));
  CHECK_RANK(rank, count == kRanks && parts[1].rank == 1 && parts[1].bytes == 4096);
  EXPECT_OK_RANK(rank, ovl_stripe_parts(striped, 1, 1, &parts, &count));
  CHECK_RANK(rank, count == kRanks && parts[1].rank == 1 && parts[1].part == rank);
  EXPECT_OK_RANK(rank, ovl_stripe_free(striped));
  CHECK_RANK(rank, ovl_stripe_rows(striped, &owned) == OVL_CLOSED);
  CHECK_RANK(rank, ovl_stripe_free(striped) == OVL_CLOSED);
}

static void refuses(ovl_runtime* runtime, ovl_team* team, int rank) {
  (void)runtime;
  ovl_channel* channel = NULL;
  ovl_striped* striped = NULL;
  ovl_stripe_spec spec = OVL_INIT(ovl_stripe_spec);
  spec.rows = kRows, spec.cols = kCols, spec.dtype = OVL_FP32;
  EXPECT_OK_RANK(rank, ovl_channel_open(team, NULL, 0, &channel));
  if (rank == 0) {
    pthread_mutex_lock(&check_mutex);
    EXPECT_ERROR(OVL_INVALID_ARGUMENT, "ovl_stripe: striped is null, wanted an address",
                 ovl_stripe(channel, &spec, "c", NULL));
    EXPECT_ERROR(OVL_INVALID_ARGUMENT, "ovl_stripe: spec is null, wanted an address",
                 ovl_stripe(channel, NULL, "c", &striped));
    EXPECT_ERROR(OVL_INVALID_ARGUMENT, "ovl_stripe: channel is null, wanted a channel",
                 ovl_stripe(NULL, &spec, "c", &striped));
    spec.dtype = 77;
    EXPECT_ERROR(OVL_INVALID_ARGUMENT, "ovl_stripe: spec.dtype is 77, wanted 0 (fp64) to 9 (u8)",
                 ovl_stripe(channel, &spec, "c", &striped));
    spec.dtype = OVL_FP32, spec.is_batched = 2;
    EXPECT_ERROR(OVL_INVALID_ARGUMENT, "ovl_stripe: spec.is_batched is 2, wanted 0 or 1",
                 ovl_stripe(channel, &spec, "c", &striped));
    spec.is_batched = 0, spec.struct_size = 8;
    CHECK(ovl_stripe(channel, &spec, "c", &striped) == OVL_VERSION_MISMATCH);
    spec.struct_size = sizeof spec;
    EXPECT_ERROR(OVL_INVALID_ARGUMENT, "ovl_stripe_out: striped is null, wanted a striped matrix",
                 ovl_stripe_out(NULL, &(ovl_tensor){0}, NULL));
    pthread_mutex_unlock(&check_mutex);
  }
  spec.rows = rank == 0 ? 0 : kRows;  // what one rank gets wrong all are told
  CHECK_RANK(rank, ovl_stripe(channel, &spec, "c", &striped) == OVL_INVALID_ARGUMENT);
  spec.rows = rank == 0 ? kRows : 2 * kRows;
  CHECK_RANK(rank, ovl_stripe(channel, &spec, "c", &striped) == OVL_PLAN_MISMATCH);
  spec.rows = 1000, spec.cols = 255;  // 4000 bytes a column: 32 of them divide a page
  EXPECT_OK_RANK(rank, ovl_stripe(channel, &spec, NULL, &striped));
  ovl_tensor out;
  EXPECT_OK_RANK(rank, ovl_stripe_out(striped, &out, NULL));
  CHECK_RANK(rank, out.strides[0] == 256);
  if (rank == 0) {
    const ovl_stripe_part* parts = NULL;
    int count = 0;
    pthread_mutex_lock(&check_mutex);
    EXPECT_ERROR(OVL_INVALID_ARGUMENT, "ovl_stripe_parts: turn is 2, wanted 0 or 1",
                 ovl_stripe_parts(striped, 2, 0, &parts, &count));
    CHECK(ovl_stripe_check_input(striped, "a", out) == OVL_INVALID_ARGUMENT);
    float a[4] = {0};
    EXPECT_OK(ovl_matrix(a, OVL_FP32, 2, 2, &out));
    EXPECT_OK(ovl_stripe_check_input(striped, "a", out));
    pthread_mutex_unlock(&check_mutex);
  }
}

int main(void) {
  run_ranks(striped_body);
  run_ranks(refuses);
  return finish("striped", 60);
}
