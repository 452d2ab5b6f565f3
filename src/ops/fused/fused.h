// The fused kernels as exec launches them for a schedule.
#pragma once

#include "src/exec/run.h"

namespace overlace::ops::fused {

/// exec::Kernel of the families k_slab, tma_slot, tracked and one_shot. bad_schedule where the schedule is not what
/// make_schedule gives: the kernel does not read tasks, it is compiled for theirs. co_residency where not one CTA
/// fits on a SM.
base::Status prepare_fused(const exec::KernelContext& context);
base::Status launch_fused(const exec::KernelContext& context);
/// Copies gathered rows (rows, K) of k_slab and one_shot of ag_gemm, K a multiple of 8, to a tensor at a multiple of 16
/// bytes.
base::Status copy_rows_out(const exec::KernelContext& context, const TensorView& from, const TensorView& to);

/// What a call of family tracked adds to one of its counters: behind prepare_fused.
uint64_t counted(const exec::KernelContext& context, std::string_view signal, int64_t slot);

/// Whether words of a one_shot tell by themselves that they have come: they must not have when the next call begins.
bool keeps_memory(const spec::Schedule& schedule);
/// Whether the current device has had a call of this schedule's kernel.
bool is_loaded(const Channel& channel, const spec::Schedule& schedule);

}  // namespace overlace::ops::fused
