// The C++ kernels' only translation unit: one namespace per instruction set over the same .inc files, a table of functions
// per set, and the C entry points that kernels/cpu/ops.py calls through ctypes. Built by `python -m kernels.cpu.build`.
//
// GOMP_* stays undefined on purpose: it resolves to the OpenMP runtime that torch has loaded, so that both share one pool.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <vector>
#include <omp.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define INLINE_METHOD inline __attribute__((always_inline))

namespace {

struct bf16 {
    uint16_t bits;
};

struct Geometry {
    int32_t heads, kv_heads, dim, slots;
};

constexpr int TILES = 4;          // of a chunk: tiles of sixteen slots between two softmax updates, so that they stay in L1
constexpr int CHUNK = 16 * TILES;
constexpr int SPLIT = 512;        // KV tokens of one range
constexpr int MAX_RANGES = 1024;  // longer contexts get longer ranges
constexpr int TILE_ROWS = 32;     // query rows of one prefill item
constexpr int64_t WORTH_A_THREAD = 800000;  // see useful_threads

struct AttentionArgs {
    void* out;
    const void* query;
    const void* pages;
    int64_t query_stride;  // elements between tokens
    Geometry g;
    float scale;
    int window;      // tokens that a query sees, itself included; 0: all
    float soft_cap;  // 0: none
    const void* slabs;     // this layer's part of slab 0
    int64_t slab_stride;   // elements from slab to slab
    float* lse;            // log-sum-exps of a part of attention, which is left in float32; null: attention whole
};

// Query tokens [first, first + tokens), the first at `position` of its sequence, against KV [kv_first, kv_end).
struct Item {
    const int32_t* table;
    int32_t first, tokens, position, head, kv_first, kv_end;
    int32_t ranges;   // of these tokens and this head; 1: written straight to the output
    int32_t leader;   // index of the item that is the first of them
    int32_t pending;  // of a leader: ranges that are not done yet
    int64_t partial;  // index of the first of its rows among the partials
    const int32_t* slabs;  // where tokens before `hosted` lie, a slab for each block
    int32_t hosted;
};

constexpr int PANEL = 32;           // outputs of a linear layer computed together
constexpr int STRETCH = 256;        // inputs of int8 weights made ready at once, to stay in L1
constexpr int LONG_STRETCH = 2048;  // inputs of bf16 weights between two looks at the sums, to stay in L2
constexpr int ROWS_BLOCK = 192;     // rows that meet all panels before the next block does, to stay in L2

enum Form { BF16_PAIRS = 0, INT8_PAIRS = 1, INT8_PLAIN = 2 };

// A packed linear layer; the layout is told in linear.inc. Without a scale it is 1, without a bias 0.
struct LinearWeight {
    const void* weight;
    const float* scale;
    const void* bias;
    int32_t outputs, inputs, form;
};

// Tiles that follow each other in one sequence. Of the slots of a tile, which are of one page, `[skipped, tokens)` count.
template <class T>
struct Chunk {
    const T *keys[TILES], *values[TILES];
    int position[TILES], tokens[TILES], skipped[TILES];  // skipped: they are before every row's window
    bool lone[TILES];                                    // the last one's values have no neighbour, see pages.inc
    int tiles, first, last;                              // positions
    bool full;                                           // all sixteen slots of all tiles count
};

inline int acc_width(int dim) { return (dim + 15) / 16 * 16; }

// Memory of the calling thread, kept for the next call; begins at a cache line.
float* scratch(size_t floats) {
    static thread_local std::vector<float> memory;
    if (memory.size() < floats + 16) memory.resize(floats + 16);
    return (float*)(((uintptr_t)memory.data() + 63) / 64 * 64);
}

std::vector<Item>& items_of_thread() {
    static thread_local std::vector<Item> items;
    return items;
}

std::vector<float>& partials_of_thread() {
    static thread_local std::vector<float> partials;
    return partials;
}

constexpr int GROUP = 64;     // logits whose largest is kept
constexpr int BLOCK = 256;    // numbers that are summed in float32
constexpr int PIECE = 16384;  // logits that a thread takes at once
constexpr int64_t WORTH_MAXIMA = 1 << 18, WORTH_SUMS = 1 << 17;  // logits worth waking another thread for
constexpr int PIVOTS = 8;     // values that a list is divided at in one pass
constexpr int FEW = 64;       // what is sorted rather than divided once more
constexpr int PAD = 16;       // numbers that a vector may write behind the last
constexpr double COLDEST = 1e-6;  // below this temperature every draw is the best token, and the division would overflow

// Tokens of a row: their logits, weights and, unless null, ids.
struct Listed {
    float *values, *weights;
    int32_t* places;
};

enum Type { FLOAT32 = 0, BFLOAT16 = 1, NUM_TYPES = 2 };
enum Level { PLAIN = 0, AVX2 = 1, AVX512 = 2, AVX512_BF16 = 3, NUM_LEVELS = 4 };

template <class T>
struct Table {
    void (*attend)(const AttentionArgs&, const Item&, const Item*, float*, float*);
    void (*merge)(const AttentionArgs&, const Item&, const float*);
    void (*rms_norm)(const T*, T*, const T*, T*, int, float);
    void (*rope)(T*, const float*, int, int);
    void (*silu_mul)(const T*, T*, int);
    void (*gelu_mul)(const T*, T*, int);
    void (*kv_write)(const T*, const T*, T*, int64_t, const Geometry&);
    void (*linear)(const float*, int64_t, const LinearWeight&, int, int64_t, T*, float*);
    void (*linear_pairs)(const bf16*, int64_t, const LinearWeight&, int, int64_t, T*, float*);
    void (*widen)(const bf16*, float*, int64_t);
    void (*merge_parts)(const T*, const float*, int, int64_t, int, float*, T*);
    void (*merge_wide_parts)(const float*, const float*, int, int64_t, int, float*, T*);
};

template <class T>
struct Reductions {
    void (*group_maxima)(const T*, int, float*);
    void (*weigh)(const T*, int, float, float, float*);
    void (*block_sums)(const T*, int, float, float, float*);
    int (*collect)(const T*, int, float, int, float*, int32_t*);
    int (*narrow)(const Listed&, int, float, float, const Listed&);
    void (*masses)(const Listed&, int, const float*, double*);
    void (*list_sums)(const float*, int, float*);
    void (*apply_mask)(T*, int, const uint32_t*);
};

#define TABLES                                                                                                      \
    const Table<float> float_table = {attend<float>, merge<float>, rms_norm_row<float>, rope_row<float>,            \
                                      silu_mul_row<float>, gelu_mul_row<float>, kv_write_row<float>,                \
                                      linear_panel<float, float>, nullptr, widen_row, merge_parts_row<float, float>, merge_parts_row<float, float>};                              \
    const Table<bf16> bf16_table = {attend<bf16>, merge<bf16>, rms_norm_row<bf16>, rope_row<bf16>, silu_mul_row<bf16>, \
                                    gelu_mul_row<bf16>, kv_write_row<bf16>, linear_panel<float, bf16>, LINEAR_PAIRS, widen_row, merge_parts_row<bf16, bf16>, merge_parts_row<float, bf16>};
#define LINEAR_PAIRS nullptr

namespace plain {
#include "simd.inc"
#include "pages.inc"
#include "attention_tiles.inc"
#include "attention.inc"
#include "elementwise.inc"
#include "linear.inc"
#include "reductions.inc"
TABLES
}  // namespace plain

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi2")
#define HALF_REGISTERS
namespace avx2 {
#include "simd.inc"
#include "pages.inc"
#include "attention_tiles.inc"
#include "attention.inc"
#include "elementwise.inc"
#include "linear.inc"
#include "reductions.inc"
TABLES
}  // namespace avx2
#undef HALF_REGISTERS
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi2,avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")
#define WIDE_REGISTERS
namespace avx512 {
#include "simd.inc"
#include "pages.inc"
#include "attention_tiles.inc"
#include "attention.inc"
#include "elementwise.inc"
#include "linear.inc"
#include "reductions.inc"
TABLES
}  // namespace avx512
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512bf16,prefer-vector-width=512")
#define HAS_BF16_DOT
#undef LINEAR_PAIRS
#define LINEAR_PAIRS (linear_panel<bf16, bf16>)
namespace avx512_bf16 {
#include "simd.inc"
#include "pages.inc"
#include "attention_tiles.inc"
#include "attention.inc"
#include "elementwise.inc"
#include "linear.inc"
#include "reductions.inc"
TABLES
}  // namespace avx512_bf16
#undef HAS_BF16_DOT
#undef WIDE_REGISTERS
#pragma GCC pop_options
#endif

template <class T>
const Table<T>& table_of(int level);

#if defined(__x86_64__)
#define CHOOSE(NAME)                                     \
    switch (level) {                                     \
        case AVX512_BF16: return avx512_bf16::NAME;      \
        case AVX512: return avx512::NAME;                \
        case AVX2: return avx2::NAME;                    \
        default: return plain::NAME;                     \
    }
#else
#define CHOOSE(NAME) return plain::NAME;
#endif

template <>
const Table<float>& table_of<float>(int level) { CHOOSE(float_table) }
template <>
const Table<bf16>& table_of<bf16>(int level) { CHOOSE(bf16_table) }
template <class T>
const Reductions<T>& reductions_of(int level) { CHOOSE(reductions<T>) }

struct Sequences {
    const int32_t* table;
    int64_t table_stride;
    const int32_t *rows, *query_starts, *contexts;
    int32_t count;
    const int32_t* limits;  // tokens that are there, of each; null: all
    const int32_t* slabs;   // hosted blocks, a row for each; null: none has any
    int64_t slabs_stride;
    const int32_t* hosted;  // tokens in them
};

// Leading blocks of sequences that lie in slabs.
struct Hosted {
    const void* slabs;  // [slab][layer][elements]
    int64_t slab_stride, layer_stride;  // elements
    const int32_t* table;
    int64_t table_stride;
    const int32_t* tokens;  // of each sequence: whole blocks
};

#include "schedule.inc"

// Rows worth waking another thread for.
constexpr int64_t GRAIN = 16384;  // elements

template <class T>
void run_rms_norm(int level, const T* x, int64_t x_stride, T* residual, const T* weight, T* out, int64_t rows, int inner,
                  int dim, float eps, int threads) {
    const Table<T>& table = table_of<T>(level);
#pragma omp parallel for num_threads(threads) if (rows * inner * dim > GRAIN)
    for (int64_t r = 0; r < rows; r++)
        for (int i = 0; i < inner; i++) {
            const int64_t at = (r * inner + i) * dim;
            table.rms_norm(x + r * x_stride + (int64_t)i * dim, residual ? residual + at : nullptr, weight, out + at, dim, eps);
        }
}

template <class T>
void run_rope(int level, T* heads, int64_t stride, const float* angles, const int32_t* positions, int64_t tokens,
              int num_heads, int dim, int threads) {
    const Table<T>& table = table_of<T>(level);
#pragma omp parallel for num_threads(threads) if (tokens * num_heads * dim > GRAIN)
    for (int64_t t = 0; t < tokens; t++)
        table.rope(heads + t * stride, angles + (int64_t)positions[t] * dim, num_heads, dim);
}

template <class T>
void run_silu_mul(int level, const T* gate_up, T* out, int64_t rows, int width, int threads) {
    const Table<T>& table = table_of<T>(level);
#pragma omp parallel for num_threads(threads) if (rows * width > GRAIN / 4)
    for (int64_t r = 0; r < rows; r++) table.silu_mul(gate_up + r * 2 * width, out + r * width, width);
}

template <class T>
void run_gelu_mul(int level, const T* gate_up, T* out, int64_t rows, int width, int threads) {
    const Table<T>& table = table_of<T>(level);
#pragma omp parallel for num_threads(threads) if (rows * width > GRAIN / 4)
    for (int64_t r = 0; r < rows; r++) table.gelu_mul(gate_up + r * 2 * width, out + r * width, width);
}

template <class T>
void run_kv_write(int level, const T* key, const T* value, int64_t stride, T* pages, const int64_t* slots, int64_t tokens,
                  const Geometry& g, int threads) {
    const Table<T>& table = table_of<T>(level);
#pragma omp parallel for num_threads(threads) if (tokens * g.kv_heads * g.dim > GRAIN)
    for (int64_t t = 0; t < tokens; t++)
        if (slots[t] >= 0) table.kv_write(key + t * stride, value + t * stride, pages, slots[t], g);
}

template <class P, class T>
void run_merge(void (*merge_row)(const P*, const float*, int, int64_t, int, float*, T*), const P* parts, const float* lse, T* out,
               int count, int64_t rows, int dim, int threads) {
#pragma omp parallel num_threads(threads) if (rows * dim * count > GRAIN)
    {
        float* acc = scratch(dim);
#pragma omp for
        for (int64_t r = 0; r < rows; r++) merge_row(parts + r * dim, lse + r, count, rows, dim, acc, out + r * dim);
    }
}

std::vector<float>& rows_of_thread() {
    static thread_local std::vector<float> rows;
    return rows;
}

// `compute(block's rows, their outputs, panel, count, room)` for all panels of all blocks of rows.
template <class X, class T>
void run_panels(void (*compute)(const X*, int64_t, const LinearWeight&, int, int64_t, T*, float*), const X* x, int64_t x_stride,
                const LinearWeight& l, T* out, int64_t rows, int threads) {
    const int64_t blocks = (rows + ROWS_BLOCK - 1) / ROWS_BLOCK, panels = (l.outputs + PANEL - 1) / PANEL;
    const int64_t most = rows < ROWS_BLOCK ? rows : ROWS_BLOCK, items = blocks * panels;
    const int64_t share = items / (8 * threads) > 0 ? items / (8 * threads) : 1;
#pragma omp parallel num_threads(threads)
    {
        float* room = scratch((size_t)(STRETCH + most) * PANEL);
#pragma omp for schedule(dynamic, share)
        for (int64_t i = 0; i < items; i++) {
            const int64_t first = i / panels * ROWS_BLOCK, left = rows - first < ROWS_BLOCK ? rows - first : ROWS_BLOCK;
            compute(x + first * x_stride, x_stride, l, (int)(i % panels), left, out + first * l.outputs, room);
        }
    }
}

// Rows in float32, or with one more input that is zero, lie in memory of the calling thread first.
template <class T>
void run_linear(int level, const LinearWeight& l, const T* x, int64_t x_stride, T* out, int64_t rows, int threads) {
    const Table<T>& table = table_of<T>(level);
    if constexpr (sizeof(T) == 4) {
        run_panels<float, T>(table.linear, x, x_stride, l, out, rows, threads);
    } else if (l.form == INT8_PLAIN) {
        std::vector<float>& wide = rows_of_thread();
        if (wide.size() < (size_t)rows * l.inputs) wide.resize((size_t)rows * l.inputs);
        for (int64_t r = 0; r < rows; r++) table.widen(x + r * x_stride, wide.data() + r * l.inputs, l.inputs);
        run_panels<float, T>(table.linear, wide.data(), l.inputs, l, out, rows, threads);
    } else if (l.inputs % 2) {
        std::vector<bf16> even((size_t)rows * (l.inputs + 1));
        for (int64_t r = 0; r < rows; r++) memcpy(&even[r * (l.inputs + 1)], x + r * x_stride, sizeof(T) * l.inputs);
        run_panels<bf16, T>(table.linear_pairs, even.data(), l.inputs + 1, l, out, rows, threads);
    } else {
        run_panels<bf16, T>(table.linear_pairs, x, x_stride, l, out, rows, threads);
    }
}

#include "layers.inc"
#include "moves.inc"
#include "sampling.inc"

}  // namespace

extern "C" {

// The best instruction set of this machine.
int tg_best_level() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2")) return PLAIN;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") ? AVX512_BF16 : AVX512;
    return AVX2;
#else
    return PLAIN;
#endif
}

// Ask for huge pages: a pool of many small pages misses the TLB on each.
void tg_advise_huge(void* start, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t page = 2u << 20, from = ((uintptr_t)start + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)start + bytes) / page * page;
    if (end > from) madvise((void*)from, end - from, MADV_HUGEPAGE);
#endif
}

// With `lse`, `out` is float32, and what a query sees nothing of is 0 with -inf. `h`, unless null, has its slabs at this layer.
void tg_paged_attention(int level, int type, void* out, const void* query, int64_t query_stride, const void* pages,
                        const int32_t* table, int64_t table_stride, const int32_t* rows, const int32_t* query_starts,
                        const int32_t* contexts, int count, const Geometry* g, float scale, int window,
                        float soft_cap, const int32_t* limits, const Hosted* h, float* lse, int threads) {
    const AttentionArgs a = {out, query, pages, query_stride, *g, scale, window, soft_cap, h ? h->slabs : nullptr,
                             h ? h->slab_stride : 0, lse};
    const Sequences s = {table, table_stride, rows, query_starts, contexts, count, limits, h ? h->table : nullptr,
                         h ? h->table_stride : 0, h ? h->tokens : nullptr};
    if (type == BFLOAT16) run_attention<bf16>(level, a, s, threads);
    else run_attention<float>(level, a, s, threads);
}

// Move whole blocks: `from + sources[i] * from_block` to `to + targets[i] * to_block` in each layer; a null list counts 0, 1, 2, ...
void tg_move_blocks(int level, char* from, int64_t from_block, int64_t from_layer, const int64_t* sources, char* to,
                    int64_t to_block, int64_t to_layer, const int64_t* targets, int64_t count, int64_t layers, int64_t bytes,
                    int threads) {
    run_moves(level, {from, from_block, from_layer, sources}, {to, to_block, to_layer, targets}, count, layers, bytes, threads);
}

void tg_rms_norm(int level, int type, const void* x, int64_t x_stride, void* residual, const void* weight, void* out,
                 int64_t rows, int inner, int dim, float eps, int threads) {
    if (type == BFLOAT16)
        run_rms_norm(level, (const bf16*)x, x_stride, (bf16*)residual, (const bf16*)weight, (bf16*)out, rows, inner, dim, eps, threads);
    else
        run_rms_norm(level, (const float*)x, x_stride, (float*)residual, (const float*)weight, (float*)out, rows, inner, dim, eps, threads);
}

void tg_rope(int level, int type, void* heads, int64_t stride, const float* angles, const int32_t* positions,
             int64_t tokens, int num_heads, int dim, int threads) {
    if (type == BFLOAT16) run_rope(level, (bf16*)heads, stride, angles, positions, tokens, num_heads, dim, threads);
    else run_rope(level, (float*)heads, stride, angles, positions, tokens, num_heads, dim, threads);
}

void tg_silu_mul(int level, int type, const void* gate_up, void* out, int64_t rows, int width, int threads) {
    if (type == BFLOAT16) run_silu_mul(level, (const bf16*)gate_up, (bf16*)out, rows, width, threads);
    else run_silu_mul(level, (const float*)gate_up, (float*)out, rows, width, threads);
}

void tg_gelu_mul(int level, int type, const void* gate_up, void* out, int64_t rows, int width, int threads) {
    if (type == BFLOAT16) run_gelu_mul(level, (const bf16*)gate_up, (bf16*)out, rows, width, threads);
    else run_gelu_mul(level, (const float*)gate_up, (float*)out, rows, width, threads);
}

void tg_linear(int level, int type, const LinearWeight* l, const void* x, int64_t x_stride, void* out, int64_t rows,
               int threads) {
    if (type == BFLOAT16) run_linear(level, *l, (const bf16*)x, x_stride, (bf16*)out, rows, threads);
    else run_linear(level, *l, (const float*)x, x_stride, (float*)out, rows, threads);
}

void tg_layers(int level, int type, const Layer* layers, int count, const Batch* b, void* hidden, void* residual, void* pages,
               int64_t layer_bytes, const int64_t* arrived, double* waited, int threads) {
    const Arrivals arrivals = {arrived, waited};
    if (type == BFLOAT16)
        run_layers(level, layers, count, *b, (bf16*)hidden, (bf16*)residual, (char*)pages, layer_bytes, arrivals, threads);
    else
        run_layers(level, layers, count, *b, (float*)hidden, (float*)residual, (char*)pages, layer_bytes, arrivals, threads);
}

void tg_kv_write(int level, int type, const void* key, const void* value, int64_t stride, void* pages,
                 const int64_t* slots, int64_t tokens, const Geometry* g, int threads) {
    if (type == BFLOAT16)
        run_kv_write(level, (const bf16*)key, (const bf16*)value, stride, (bf16*)pages, slots, tokens, *g, threads);
    else
        run_kv_write(level, (const float*)key, (const float*)value, stride, (float*)pages, slots, tokens, *g, threads);
}

// Parts are of `part_type`, float32 or the type of what comes out.
void tg_merge_partials(int level, int type, int part_type, const void* parts, const float* lse, void* out, int count, int64_t rows,
                       int dim, int threads) {
    const Table<float>& wide = table_of<float>(level);
    const Table<bf16>& narrow = table_of<bf16>(level);
    if (type == FLOAT32) run_merge(wide.merge_parts, (const float*)parts, lse, (float*)out, count, rows, dim, threads);
    else if (part_type == FLOAT32) run_merge(narrow.merge_wide_parts, (const float*)parts, lse, (bf16*)out, count, rows, dim, threads);
    else run_merge(narrow.merge_parts, (const bf16*)parts, lse, (bf16*)out, count, rows, dim, threads);
}

// The reductions of logits [rows][vocab]; `rows`, unless null, says which.
void tg_argmax(int level, int type, const void* x, int64_t count, int vocab, int64_t* out, int threads) {
    if (type == BFLOAT16) run_argmax<bf16>(level, {(const bf16*)x, nullptr, count, vocab}, out, threads);
    else run_argmax<float>(level, {(const float*)x, nullptr, count, vocab}, out, threads);
}

void tg_top_k(int level, int type, const void* x, const int64_t* rows, int64_t count, int vocab, int k, float* values, int64_t* ids,
              int threads) {
    if (type == BFLOAT16) run_top_k<bf16>(level, {(const bf16*)x, rows, count, vocab}, k, values, ids, threads);
    else run_top_k<float>(level, {(const float*)x, rows, count, vocab}, k, values, ids, threads);
}

void tg_logprobs(int level, int type, const void* x, const int64_t* rows, int64_t count, int vocab, const int64_t* tokens, int width,
                 float* out, int threads) {
    if (type == BFLOAT16) run_logprobs<bf16>(level, {(const bf16*)x, rows, count, vocab}, tokens, width, out, threads);
    else run_logprobs<float>(level, {(const float*)x, rows, count, vocab}, tokens, width, out, threads);
}

// The rows of logits that are named are written.
void tg_mask(int level, int type, void* x, const int64_t* rows, int64_t count, int vocab, const uint32_t* words, int threads) {
    if (type == BFLOAT16) run_mask(level, (bf16*)x, rows, count, vocab, words, threads);
    else run_mask(level, (float*)x, rows, count, vocab, words, threads);
}

void tg_sample(int level, int type, const void* x, int64_t count, int vocab, const void* how, int64_t* out, int threads) {
    if (type == BFLOAT16) run_sample<bf16>(level, {(const bf16*)x, nullptr, count, vocab}, (const Draw*)how, out, threads);
    else run_sample<float>(level, {(const float*)x, nullptr, count, vocab}, (const Draw*)how, out, threads);
}

}  // extern "C"
