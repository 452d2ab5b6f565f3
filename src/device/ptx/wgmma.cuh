// Warpgroup matrix products: d (64, N) += a (64, 16) b (16, N), fp32 sums in registers, operands in shared memory.
//
// Thread t of the warpgroup holds rows 16 (t / 32) + t % 32 / 4 and 8 rows further down; d[4 j], d[4 j + 1] are columns
// 8 j + 2 (t % 4) and the next of the upper row, d[4 j + 2], d[4 j + 3] the same columns of the lower row.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace overlace::device::ptx {

/// Registers were touched by ordinary instructions before: once before the first product of a group.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// At most kPending groups of products are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// The registers are not read before this point of the program: the compiler does not know that products write them
/// until wgmma_wait.
template <int kRegisters>
__device__ __forceinline__ void wgmma_hold(float (&d)[kRegisters]) {
#pragma unroll
  for (int i = 0; i < kRegisters; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// Operand whose rows of 64 elements along K (128 bytes, swizzled in atoms of 8 rows) follow each other. The address is
/// a multiple of 1024; the next 16 elements of K are 2 further (in units of the descriptor, 16 bytes).
__device__ __forceinline__ uint64_t descriptor_k_major(uint32_t shared) {
  constexpr uint64_t kAtoms = 1024 / 16, kSwizzle128 = uint64_t{1} << 62;
  return (shared & 0x3FFFF) >> 4 | uint64_t{1} << 16 | kAtoms << 32 | kSwizzle128;
}
/// Operand in boxes of 64 elements along M or N (128 bytes, swizzled) by 64 of K, box after box. The next 16 elements
/// of K are 128 further.
__device__ __forceinline__ uint64_t descriptor_mn_major(uint32_t shared) {
  constexpr uint64_t kBoxes = 64 * 128 / 16, kAtoms = 1024 / 16, kSwizzle128 = uint64_t{1} << 62;
  return (shared & 0x3FFFF) >> 4 | kBoxes << 16 | kAtoms << 32 | kSwizzle128;
}

// ---- one instruction per N ----
// The register lists are text: an asm statement has no loops.

#define OVERLACE_R0_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define OVERLACE_R0_32                                                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define OVERLACE_R32_64                                                                                              \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define OVERLACE_R64_80 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define OVERLACE_R80_96 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define OVERLACE_R96_112 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define OVERLACE_R112_128 \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define OVERLACE_D8(i)                                                                                        \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define OVERLACE_D16(i) OVERLACE_D8(i), OVERLACE_D8(i + 8)
#define OVERLACE_D32(i) OVERLACE_D16(i), OVERLACE_D16(i + 16)
// `a`, `b`, `accumulate`, `a_transposed`, `b_transposed`: the operands that follow the registers, as text.
#define OVERLACE_WGMMA(n, type, registers, a, b, accumulate, a_transposed, b_transposed, ...)               \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " accumulate                                               \
               ", 0;\n"                                                                                     \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" registers "}, " a ", " b \
               ", p, 1, 1, " a_transposed ", " b_transposed ";\n}"                                          \
               : __VA_ARGS__                                                                                \
               : "l"(a_descriptor), "l"(b_descriptor), "r"(accumulates), "n"(kATransposed), "n"(kBTransposed))

/// accumulates 0: d is overwritten. kATransposed 1: a is M-contiguous; kBTransposed 1: b is N-contiguous.
template <class T, int kATransposed, int kBTransposed, int kRegisters>
__device__ __forceinline__ void wgmma(float (&d)[kRegisters], uint64_t a_descriptor, uint64_t b_descriptor,
                                      int accumulates) {
  constexpr bool kIsBf16 = std::is_same_v<T, __nv_bfloat16>;
  static_assert(kIsBf16 || std::is_same_v<T, __half>);
  if constexpr (kRegisters == 8) {
    if constexpr (kIsBf16) {
      OVERLACE_WGMMA("16", "bf16", OVERLACE_R0_8, "%8", "%9", "%10", "%11", "%12", OVERLACE_D8(0));
    } else {
      OVERLACE_WGMMA("16", "f16", OVERLACE_R0_8, "%8", "%9", "%10", "%11", "%12", OVERLACE_D8(0));
    }
  } else if constexpr (kRegisters == 32) {
    if constexpr (kIsBf16) {
      OVERLACE_WGMMA("64", "bf16", OVERLACE_R0_32, "%32", "%33", "%34", "%35", "%36", OVERLACE_D32(0));
    } else {
      OVERLACE_WGMMA("64", "f16", OVERLACE_R0_32, "%32", "%33", "%34", "%35", "%36", OVERLACE_D32(0));
    }
  } else if constexpr (kRegisters == 64) {
    if constexpr (kIsBf16) {
      OVERLACE_WGMMA("128", "bf16", OVERLACE_R0_32 OVERLACE_R32_64, "%64", "%65", "%66", "%67", "%68", OVERLACE_D32(0),
                     OVERLACE_D32(32));
    } else {
      OVERLACE_WGMMA("128", "f16", OVERLACE_R0_32 OVERLACE_R32_64, "%64", "%65", "%66", "%67", "%68", OVERLACE_D32(0),
                     OVERLACE_D32(32));
    }
  } else if constexpr (kRegisters == 80) {
    if constexpr (kIsBf16) {
      OVERLACE_WGMMA("160", "bf16", OVERLACE_R0_32 OVERLACE_R32_64 OVERLACE_R64_80, "%80", "%81", "%82", "%83", "%84",
                     OVERLACE_D32(0), OVERLACE_D32(32), OVERLACE_D16(64));
    } else {
      OVERLACE_WGMMA("160", "f16", OVERLACE_R0_32 OVERLACE_R32_64 OVERLACE_R64_80, "%80", "%81", "%82", "%83", "%84",
                     OVERLACE_D32(0), OVERLACE_D32(32), OVERLACE_D16(64));
    }
  } else if constexpr (kRegisters == 96) {
    if constexpr (kIsBf16) {
      OVERLACE_WGMMA("192", "bf16", OVERLACE_R0_32 OVERLACE_R32_64 OVERLACE_R64_80 OVERLACE_R80_96, "%96", "%97", "%98",
                     "%99", "%100", OVERLACE_D32(0), OVERLACE_D32(32), OVERLACE_D32(64));
    } else {
      OVERLACE_WGMMA("192", "f16", OVERLACE_R0_32 OVERLACE_R32_64 OVERLACE_R64_80 OVERLACE_R80_96, "%96", "%97", "%98",
                     "%99", "%100", OVERLACE_D32(0), OVERLACE_D32(32), OVERLACE_D32(64));
    }
  } else if constexpr (kRegisters == 112) {
    if constexpr (kIsBf16) {
      OVERLACE_WGMMA("224", "bf16", OVERLACE_R0_32 OVERLACE_R32_64 OVERLACE_R64_80 OVERLACE_R80_96 OVERLACE_R96_112,
                     "%112", "%113", "%114", "%115", "%116", OVERLACE_D32(0), OVERLACE_D32(32), OVERLACE_D32(64),
                     OVERLACE_D16(96));
    } else {
      OVERLACE_WGMMA("224", "f16", OVERLACE_R0_32 OVERLACE_R32_64 OVERLACE_R64_80 OVERLACE_R80_96 OVERLACE_R96_112,
                     "%112", "%113", "%114", "%115", "%116", OVERLACE_D32(0), OVERLACE_D32(32), OVERLACE_D32(64),
                     OVERLACE_D16(96));
    }
  } else if constexpr (kRegisters == 128) {
    if constexpr (kIsBf16) {
      OVERLACE_WGMMA("256", "bf16",
                     OVERLACE_R0_32 OVERLACE_R32_64 OVERLACE_R64_80 OVERLACE_R80_96 OVERLACE_R96_112 OVERLACE_R112_128,
                     "%128", "%129", "%130", "%131", "%132", OVERLACE_D32(0), OVERLACE_D32(32), OVERLACE_D32(64),
                     OVERLACE_D32(96));
    } else {
      OVERLACE_WGMMA("256", "f16",
                     OVERLACE_R0_32 OVERLACE_R32_64 OVERLACE_R64_80 OVERLACE_R80_96 OVERLACE_R96_112 OVERLACE_R112_128,
                     "%128", "%129", "%130", "%131", "%132", OVERLACE_D32(0), OVERLACE_D32(32), OVERLACE_D32(64),
                     OVERLACE_D32(96));
    }
  } else {
    static_assert(kRegisters == 0, "N is 16, 64, 128, 160, 192, 224 or 256");
  }
}
#undef OVERLACE_R0_8
#undef OVERLACE_R0_32
#undef OVERLACE_R32_64
#undef OVERLACE_R64_80
#undef OVERLACE_R80_96
#undef OVERLACE_R96_112
#undef OVERLACE_R112_128
#undef OVERLACE_D8
#undef OVERLACE_D16
#undef OVERLACE_D32
#undef OVERLACE_WGMMA

}  // namespace overlace::device::ptx
