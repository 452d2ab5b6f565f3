"""The C API by ctypes, without torch: two ranks as threads. OVERLACE_LIB names liboverlace.so.

Runs under pytest, and by `python3 -m unittest` where there is none.
"""

import array
import ctypes as c
import os
import threading
import unittest
from pathlib import Path

LIBRARY = os.environ.get("OVERLACE_LIB", "")
FP32, CPU, RANKS = 1, 1, 2
OK, INVALID_ARGUMENT, CLOSED, BAD_SCHEDULE = 0, 1, 3, 6


class Options(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("backend", c.c_int32),
        ("has_device", c.c_int32),
        ("device", c.c_int32),
        ("num_signal_ids", c.c_uint32),
        ("heap_bytes", c.c_uint64),
        ("max_heap_bytes", c.c_uint64),
        ("timeout_ms", c.c_int64),
        ("link", c.c_char_p),
        ("adversary", c.c_char_p),
        ("checks", c.c_char_p),
        ("net_engine", c.c_char_p),
        ("machine", c.c_char_p),
    ]


class Op(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("name", c.c_char_p),
        ("m", c.c_int64),
        ("n", c.c_int64),
        ("k", c.c_int64),
        ("ranks", c.c_int32),
        ("dtype", c.c_int32),
        ("out_dtype", c.c_int32),
        ("b_layout", c.c_int32),
        ("has_bias", c.c_int32),
        ("has_a", c.c_int32),
        ("activation", c.c_int32),
        ("row_offsets", c.POINTER(c.c_int64)),
        ("splits", c.POINTER(c.c_int64)),
        ("exchange", c.c_int32),
        ("num_blocks", c.c_int32),
        ("blocks", c.POINTER(c.c_int64)),
        ("scales", c.c_int32),
    ]


class Tensor(c.Structure):
    _fields_ = [
        ("data", c.c_void_p),
        ("dtype", c.c_int32),
        ("ndim", c.c_int32),
        ("sizes", c.c_int64 * 4),
        ("strides", c.c_int64 * 4),
    ]


class Arg(c.Structure):
    _fields_ = [
        ("name", c.c_char_p),
        ("kind", c.c_int32),
        ("count", c.c_int32),
        ("tensor", Tensor),
        ("integer", c.c_int64),
        ("real", c.c_double),
        ("text", c.c_char_p),
        ("list", c.POINTER(c.c_int64)),
    ]


def sized(kind: type, **fields):
    return kind(struct_size=c.sizeof(kind), **fields)


def load() -> c.CDLL:
    library = c.CDLL(LIBRARY)
    library.ovl_error_text.restype = c.c_char_p
    library.ovl_error_name.restype = c.c_char_p
    library.ovl_version.restype = c.c_char_p
    library.ovl_all_reduce.argtypes = [c.c_void_p, c.c_void_p, c.c_void_p, c.c_int64, c.c_int]
    library.ovl_matrix.argtypes = [c.c_void_p, c.c_int, c.c_int64, c.c_int64, c.c_void_p]
    return library


class Failure(Exception):
    pass


@unittest.skipUnless(LIBRARY and Path(LIBRARY).exists(), "OVERLACE_LIB does not name liboverlace.so")
class CApiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.lib = load()

    def call(self, name: str, *arguments) -> None:
        code = getattr(self.lib, name)(*arguments)
        if code != OK:
            raise Failure(code, self.lib.ovl_error_text().decode())

    def handle(self, name: str, *arguments) -> c.c_void_p:
        out = c.c_void_p()
        self.call(name, *arguments, c.byref(out))
        return out

    def refused(self, name: str, *arguments) -> tuple:
        with self.assertRaises(Failure) as caught:
            self.call(name, *arguments)
        return caught.exception.args

    def run_ranks(self, body) -> None:
        world = self.handle("ovl_world_create", RANKS)
        failures = []

        def run(rank: int) -> None:
            options = sized(Options, backend=CPU, heap_bytes=4 << 20, timeout_ms=20000)
            try:
                runtime = self.handle("ovl_runtime_open_thread", world, rank, c.byref(options))
                body(runtime, self.handle("ovl_runtime_world", runtime), rank)
                self.call("ovl_runtime_close", runtime)
            except BaseException as failure:
                failures.append((rank, failure))

        threads = [threading.Thread(target=run, args=(r,)) for r in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(failures, [])
        self.call("ovl_world_free", world)

    def matrix(self, data: array.array, rows: int, columns: int) -> Tensor:
        self.assertEqual(len(data), rows * columns)
        tensor = Tensor()
        self.call("ovl_matrix", data.buffer_info()[0], FP32, rows, columns, c.byref(tensor))
        return tensor

    def test_gemm_rs_of_a_chosen_and_a_written_schedule(self) -> None:
        m, n, k = 8, 5, 3

        def a_value(rank, i, j):
            return float((i * 5 + j * 3 + rank) % 7 - 3)

        def b_value(rank, j, i):
            return float((j * 2 + i * 3 + rank) % 5 - 2)

        def body(runtime, team, rank):
            channel = self.handle("ovl_channel_open", team, None, 0)
            op = sized(Op, name=b"gemm_rs", m=m, n=n, k=k, ranks=RANKS, dtype=FP32, out_dtype=FP32, b_layout=1)
            chosen = self.handle("ovl_schedule_choose", runtime, c.byref(op))
            reason, text = c.c_char_p(), c.c_char_p()
            self.call("ovl_schedule_reason", chosen, c.byref(reason))
            self.assertEqual(reason.value, b"the GEMM rate of this machine is unknown: library")
            made = self.handle("ovl_schedule_make", c.byref(op), b"uniform_fused_1d", 2)
            self.call("ovl_schedule_json", made, c.byref(text))
            written = self.handle("ovl_schedule_from_json", text)
            copied = c.c_char_p()
            self.call("ovl_schedule_json", written, c.byref(copied))
            self.assertEqual(text.value, copied.value)
            a = array.array("f", [a_value(rank, i, j) for i in range(m) for j in range(k)])
            b = array.array("f", [b_value(rank, j, i) for j in range(k) for i in range(n)])
            rows = m // RANKS
            want = [
                sum(a_value(r, rank * rows + i, j) * b_value(r, j, x) for r in range(RANKS) for j in range(k))
                for i in range(rows)
                for x in range(n)
            ]
            for schedule in (chosen, written):
                out = array.array("f", [-1.0] * (rows * n))
                tensors = {b"a": self.matrix(a, m, k), b"b": self.matrix(b, k, n), b"out": self.matrix(out, rows, n)}
                args = (Arg * 3)(*(Arg(name=name, tensor=tensor) for name, tensor in tensors.items()))
                self.call("ovl_call", channel, b"gemm_rs", args, 3, schedule)
                self.assertEqual(list(out), want)
                self.call("ovl_schedule_free", schedule)

        self.run_ranks(body)

    def test_all_reduce(self) -> None:
        def body(runtime, team, rank):
            channel = self.handle("ovl_channel_open", team, None, 0)
            values = array.array("f", [rank * 100.0 + i for i in range(7)])
            out = array.array("f", [0.0] * 7)
            self.call("ovl_all_reduce", channel, values.buffer_info()[0], out.buffer_info()[0], 7, FP32)
            self.assertEqual(list(out), [100.0 + 2 * i for i in range(7)])

        self.run_ranks(body)

    def test_the_callers_allgather_brings_ranks_together(self) -> None:
        gathered, ready = [b""] * RANKS, threading.Barrier(RANKS, timeout=20)
        kind = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_size_t, c.c_void_p)

        class Given(c.Structure):
            _fields_ = [
                ("struct_size", c.c_size_t),
                ("rank", c.c_int32),
                ("size", c.c_int32),
                ("token", c.c_char_p),
                ("allgather", kind),
                ("user", c.c_void_p),
            ]

        def open_rank(rank: int, sizes: list) -> None:
            def gather(user, mine, count, everything):
                gathered[rank] = c.string_at(mine, count)
                ready.wait()
                c.memmove(everything, b"".join(gathered), count * RANKS)
                ready.wait()
                return 0

            function = kind(gather)
            given = sized(Given, rank=rank, size=RANKS, token=b"given", allgather=function)
            options = sized(Options, backend=CPU, heap_bytes=1 << 20, timeout_ms=20000)
            runtime = self.handle("ovl_runtime_open_given", c.byref(given), c.byref(options))
            size = c.c_int()
            self.call("ovl_team_size", self.handle("ovl_runtime_world", runtime), c.byref(size))
            self.call("ovl_runtime_close", runtime)
            sizes[rank] = size.value

        sizes = [0] * RANKS
        threads = [threading.Thread(target=open_rank, args=(r, sizes)) for r in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(sizes, [RANKS] * RANKS)

    def test_errors_have_code_and_text(self) -> None:
        self.assertEqual(
            self.refused("ovl_world_free", None), (INVALID_ARGUMENT, "ovl_world_free: world is null, wanted a world")
        )
        world = self.handle("ovl_world_create", 1)
        self.call("ovl_world_free", world)
        self.assertEqual(
            self.refused("ovl_world_free", world), (CLOSED, "ovl_world_free: world was closed before this call")
        )
        out = c.c_void_p()
        code, text = self.refused("ovl_schedule_from_json", b'{"op": 3}', c.byref(out))
        self.assertEqual((code, self.lib.ovl_error_name(code)), (BAD_SCHEDULE, b"bad_schedule"))
        self.assertIn("wanted", text)

    def test_a_schedule_that_would_hang_is_refused(self) -> None:
        op = sized(Op, name=b"ag_gemm", m=8, n=4, k=4, ranks=RANKS, dtype=FP32, out_dtype=FP32)
        made = self.handle("ovl_schedule_make", c.byref(op), b"hetero_fused_1d", 1)
        text, out = c.c_char_p(), c.c_void_p()
        self.call("ovl_schedule_json", made, c.byref(text))
        # Nobody adds to what is awaited: each rank would wait until its deadline.
        wait = b'"waits":[["arrived","s","(p+min(1,max(0,p-r+1)))",%d,'
        broken = text.value.replace(wait % 1, wait % 2)
        self.assertNotEqual(broken, text.value)
        code, why = self.refused("ovl_schedule_from_json", broken, c.byref(out))
        self.assertEqual(code, BAD_SCHEDULE)
        self.assertTrue(why.startswith("schedule: S4: task "), why)


if __name__ == "__main__":
    unittest.main()
