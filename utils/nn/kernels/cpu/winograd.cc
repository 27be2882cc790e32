// 3x3 convolutions with stride 1 and padding 1 by Winograd's algorithm F(2x2, 3x3) (Lavin and Gray,
// arXiv:1509.09308): 16 multiplications per tile and channel instead of 36.
//
// A tile is 2x2 outputs; its 4x4 inputs overlap those of its neighbours. With d, g and y the inputs,
// filter and outputs of a tile, ' for transposed and * for the product of elements,
//   y = A' [sum over input channels of (G g G') * (B' d B)] A
//   B' = 1  0 -1  0     G =  1    0    0     A' = 1  1  1  0
//        0  1  1  0         1/2  1/2  1/2         0  1 -1 -1
//        0 -1  1  0         1/2 -1/2  1/2
//        0  1  0 -1          0    0    1
// The gradient of the input is the same convolution of dy, with filters rotated by 180 degrees and
// channels exchanged. The gradient of a filter is G' [sum over all tiles of (A dy A') * (B' d B)] G.
// So each of the 16 elements of the transformed tiles is a matrix product.
//
// Results are equal bit by bit for any number of threads: each sum has a fixed order. The buffers
// are static, so the caller holds a lock.
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace {
// Rows of a block of a product: channels, or tiles. AVX2 has registers for 6 rows, but channels are
// no multiple of 6.
#ifdef __AVX512F__
constexpr int kLanes = 16, kRows = 8, kTileRows = 8;
#else
constexpr int kLanes = 8, kRows = 4, kTileRows = 6;
#endif
constexpr int kWidth = 2 * kLanes;  // columns of a block of a product
constexpr int kElements = 16;       // of a transformed tile
constexpr int64_t kTiles = 48;      // that a thread transforms at once, at most
constexpr int64_t kFewTiles = 16;   // for which no other thread is used
constexpr int64_t kGroup = 256;     // tiles of one step of the sum of a filter's gradient
constexpr int64_t kLine = 16;       // floats of a line of a cache; rows are that far apart, to be in
                                    // different sets of it
constexpr int64_t kChannels = 64;   // the numbers of channels are multiples of it
static_assert(kChannels % kWidth == 0 && kChannels % kLine == 0, "blocks have no rest");
static_assert(kLine % kLanes == 0 && kTiles % kTileRows == 0 && kChannels % kRows == 0,
              "rows are aligned and blocks fit");
typedef float Vector __attribute__((vector_size(4 * kLanes), may_alias));
typedef int Mask __attribute__((vector_size(4 * kLanes)));

Vector* at(float* p) { return reinterpret_cast<Vector*>(p); }
const Vector* at(const float* p) { return reinterpret_cast<const Vector*>(p); }

struct FloatBuffer {
  float* data = nullptr;
  int64_t size = 0;

  float* reserve(int64_t needed) {
    if (needed > size) {
      std::free(data);
      size = 0;
      const int64_t rounded = (needed + 1023) / 1024 * 1024;
      data = static_cast<float*>(std::aligned_alloc(4096, 4 * rounded));
      if (!data) throw std::runtime_error("out of memory");
      std::memset(data, 0, 4 * rounded);
      size = rounded;
    }
    return data;
  }
};

struct Shape {
  int64_t images, height, width;

  int64_t pixels() const { return height * width; }
  int64_t rows() const { return (height + 1) / 2; }  // of tiles
  int64_t columns() const { return (width + 1) / 2; }
  int64_t tiles() const { return images * rows() * columns(); }

  // Calls function(index, image, row, column, count) for runs of neighbours in a row of tiles, up to
  // kTiles long, of the tiles first to last; `index` is the run's first tile - first.
  template <class F>
  void for_each_run(int64_t first, int64_t last, F function) const {
    for (int64_t tile = first, count; tile < last; tile += count) {
      const int64_t column = tile % columns(), row = tile / columns() % rows();
      count = std::min({columns() - column, last - tile, kTiles});
      function(tile - first, tile / columns() / rows(), row, column, count);
    }
  }
};

// A step of a transposition: exchanges elements whose row and lane differ in bit `kBit`.
template <int kBit>
void exchange(Vector* a) {
  Mask low, high;
  for (int lane = 0; lane < kLanes; ++lane) {
    low[lane] = lane & kBit ? kLanes + (lane ^ kBit) : lane;
    high[lane] = lane & kBit ? kLanes + lane : lane ^ kBit;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if (i & kBit) continue;
    const Vector first = a[i], second = a[i | kBit];
    a[i] = __builtin_shuffle(first, second, low);
    a[i | kBit] = __builtin_shuffle(first, second, high);
  }
}

void transpose(Vector* a) {
  exchange<1>(a);
  exchange<2>(a);
  exchange<4>(a);
  if (kLanes == 16) exchange<kLanes / 2>(a);
}

// Columns [begin, end) of a row of kLanes channels -> (end - begin, kLanes); 0 outside.
void load_row(const float* from, const Shape& shape, int64_t row, int64_t begin, int64_t end,
              Vector* to) {
  const bool is_inside = row >= 0 && row < shape.height;
  const int64_t first = is_inside ? std::max<int64_t>(begin, 0) : end;
  const int64_t last = std::min(end, shape.width);
  float* numbers = reinterpret_cast<float*>(to);
  int64_t q = begin;
  for (; q < first; ++q) to[q - begin] = Vector{};
  for (; q + kLanes <= last; q += kLanes) {
    Vector* square = to + q - begin;
    for (int i = 0; i < kLanes; ++i)
      std::memcpy(square + i, from + i * shape.pixels() + row * shape.width + q, sizeof(Vector));
    transpose(square);
  }
  for (; q < last; ++q)
    for (int i = 0; i < kLanes; ++i)
      numbers[(q - begin) * kLanes + i] = from[i * shape.pixels() + row * shape.width + q];
  for (; q < end; ++q) to[q - begin] = Vector{};
}

// (end - begin, kLanes) -> columns [begin, end) of a row of kLanes channels; not outside of them.
// Changes `from`.
void store_row(Vector* from, const Shape& shape, int64_t row, int64_t begin, int64_t end,
               float* to) {
  if (row >= shape.height) return;
  const int64_t last = std::min(end, shape.width);
  const float* numbers = reinterpret_cast<const float*>(from);
  int64_t q = begin;
  for (; q + kLanes <= last; q += kLanes) {
    Vector* square = from + q - begin;
    transpose(square);
    for (int i = 0; i < kLanes; ++i)
      std::memcpy(to + i * shape.pixels() + row * shape.width + q, square + i, sizeof(Vector));
  }
  for (; q < last; ++q)
    for (int i = 0; i < kLanes; ++i)
      to[i * shape.pixels() + row * shape.width + q] = numbers[(q - begin) * kLanes + i];
}

// B' d B of a run of tiles, kLanes channels of x -> v[element * element_step + tile * tile_step].
void transform_inputs(const float* x, const Shape& shape, int64_t row, int64_t column, int64_t count,
                      float* v, int64_t element_step, int64_t tile_step) {
  const int64_t begin = 2 * column - 1, end = begin + 2 * count + 2;
  Vector d[4][2 * kTiles + 2];
  for (int i = 0; i < 4; ++i) load_row(x, shape, 2 * row - 1 + i, begin, end, d[i]);
  for (int64_t q = 0; q < end - begin; ++q) {
    const Vector d0 = d[0][q], d1 = d[1][q], d2 = d[2][q], d3 = d[3][q];
    d[0][q] = d0 - d2;
    d[1][q] = d1 + d2;
    d[2][q] = d2 - d1;
    d[3][q] = d1 - d3;
  }
  for (int64_t t = 0; t < count; ++t)
    for (int i = 0; i < 4; ++i) {
      const Vector* b = d[i] + 2 * t;
      float* to = v + 4 * i * element_step + t * tile_step;
      *at(to) = b[0] - b[2];
      *at(to + element_step) = b[1] + b[2];
      *at(to + 2 * element_step) = b[2] - b[1];
      *at(to + 3 * element_step) = b[1] - b[3];
    }
}

// A dy A' of a run of tiles, kLanes channels of dy -> z[element * element_step + tile * tile_step].
void transform_output_gradients(const float* dy, const Shape& shape, int64_t row, int64_t column,
                                int64_t count, float* z, int64_t element_step, int64_t tile_step) {
  const int64_t begin = 2 * column, end = begin + 2 * count;
  Vector d[4][2 * kTiles];
  load_row(dy, shape, 2 * row, begin, end, d[0]);
  load_row(dy, shape, 2 * row + 1, begin, end, d[3]);
  for (int64_t q = 0; q < end - begin; ++q) {
    d[1][q] = d[0][q] + d[3][q];
    d[2][q] = d[0][q] - d[3][q];
    d[3][q] = -d[3][q];
  }
  for (int64_t t = 0; t < count; ++t)
    for (int i = 0; i < 4; ++i) {
      const Vector* b = d[i] + 2 * t;
      float* to = z + 4 * i * element_step + t * tile_step;
      *at(to) = b[0];
      *at(to + element_step) = b[0] + b[1];
      *at(to + 2 * element_step) = b[0] - b[1];
      *at(to + 3 * element_step) = -b[1];
    }
}

// A' m A of a run of tiles, m[element * element_step + tile * kWidth] -> kLanes channels of y.
void transform_outputs(const float* m, int64_t element_step, const Shape& shape, int64_t row,
                       int64_t column, int64_t count, float* y) {
  Vector out[2][2 * kTiles];
  for (int64_t t = 0; t < count; ++t) {
    Vector top[4], bottom[4];
    for (int i = 0; i < 4; ++i) {
      const float* from = m + i * element_step + t * kWidth;
      const Vector m1 = *at(from + 4 * element_step), m2 = *at(from + 8 * element_step);
      top[i] = *at(from) + m1 + m2;
      bottom[i] = m1 - m2 - *at(from + 12 * element_step);
    }
    out[0][2 * t] = top[0] + top[1] + top[2];
    out[0][2 * t + 1] = top[1] - top[2] - top[3];
    out[1][2 * t] = bottom[0] + bottom[1] + bottom[2];
    out[1][2 * t + 1] = bottom[1] - bottom[2] - bottom[3];
  }
  for (int i = 0; i < 2; ++i)
    store_row(out[i], shape, 2 * row + i, 2 * column, 2 * (column + count), y);
}

// G g of three vectors -> four.
void multiply_by_g(const Vector* g, Vector* u) {
  const Vector sum = 0.5f * (g[0] + g[2]), half = 0.5f * g[1];
  u[0] = g[0];
  u[1] = sum + half;
  u[2] = sum - half;
  u[3] = g[2];
}

// G' u of four vectors -> three.
void multiply_by_g_transposed(const Vector* u, Vector* g) {
  const Vector sum = 0.5f * (u[1] + u[2]);
  g[0] = u[0] + sum;
  g[1] = 0.5f * (u[1] - u[2]);
  g[2] = sum + u[3];
}

// G g G' of all filters, w (cout, cin, 3, 3) -> u (outputs / kWidth, 16, inputs, kWidth). For the
// gradient of the input, the filters are rotated, and the inputs are the cout channels.
void transform_filters(const float* w, bool is_rotated, int64_t outputs, int64_t inputs, float* u) {
#pragma omp parallel for schedule(static)
  for (int64_t k = 0; k < outputs; k += kLanes)
    for (int64_t c = 0; c < inputs; ++c) {
      Vector g[3][3], h[3][4], columns[3], elements[4];
      float* lanes = reinterpret_cast<float*>(g);
      for (int lane = 0; lane < kLanes; ++lane) {
        const float* from = w + 9 * (is_rotated ? c * outputs + k + lane : (k + lane) * inputs + c);
        for (int i = 0; i < 9; ++i) lanes[i * kLanes + lane] = from[is_rotated ? 8 - i : i];
      }
      for (int i = 0; i < 3; ++i) multiply_by_g(g[i], h[i]);
      const int64_t step = inputs * kWidth;
      float* to = u + k / kWidth * kElements * step + c * kWidth + k % kWidth;
      for (int j = 0; j < 4; ++j) {
        for (int i = 0; i < 3; ++i) columns[i] = h[i][j];
        multiply_by_g(columns, elements);
        for (int i = 0; i < 4; ++i) *at(to + (4 * i + j) * step) = elements[i];
      }
    }
}

// m (rows, kWidth) = a b, or m += a b, sums of `depth` terms: a[row * a_row + i * a_step],
// b[i * b_row + column].
template <int rows>
void multiply_block(int64_t depth, const float* a, int64_t a_row, int64_t a_step, const float* b,
                    int64_t b_row, float* m, int64_t m_row, bool accumulates) {
  Vector sums[rows][2] = {};
  for (int64_t i = 0; i < depth; ++i, a += a_step, b += b_row) {
    const Vector left = at(b)[0], right = at(b)[1];
    for (int row = 0; row < rows; ++row) {
      sums[row][0] += a[row * a_row] * left;
      sums[row][1] += a[row * a_row] * right;
    }
  }
  for (int row = 0; row < rows; ++row)
    for (int i = 0; i < 2; ++i) {
      Vector* to = at(m + row * m_row) + i;
      *to = accumulates ? *to + sums[row][i] : sums[row][i];
    }
}

// x (N, inputs, H, W), u of transform_filters -> y (N, outputs, H, W). Each thread computes equally
// many parts, each of up to kTiles tiles.
void convolve(const float* x, const float* u, const Shape& shape, int64_t inputs, int64_t outputs,
              float* y) {
  static FloatBuffer all_inputs, all_products;
  const int64_t tiles = shape.tiles();
  const int64_t threads =
      std::min<int64_t>(omp_get_max_threads(), (tiles + kFewTiles - 1) / kFewTiles);
  const int64_t parts = ((tiles + kTiles - 1) / kTiles + threads - 1) / threads * threads;
  const int64_t v_tile = inputs + kLine, v_element = kTiles * v_tile, m_element = kTiles * kWidth;
  float* v_of_threads = all_inputs.reserve(threads * kElements * v_element);
  float* m_of_threads = all_products.reserve(threads * kElements * m_element);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = tiles * part / parts, last = tiles * (part + 1) / parts;
    float* v = v_of_threads + omp_get_thread_num() * kElements * v_element;
    float* m = m_of_threads + omp_get_thread_num() * kElements * m_element;
    shape.for_each_run(first, last, [&](int64_t index, int64_t image, int64_t row, int64_t column,
                                        int64_t count) {
      for (int64_t c = 0; c < inputs; c += kLanes)
        transform_inputs(x + (image * inputs + c) * shape.pixels(), shape, row, column, count,
                         v + index * v_tile + c, v_element, v_tile);
    });
    for (int64_t k = 0; k < outputs; k += kWidth) {
      for (int i = 0; i < kElements; ++i) {
        const float* filters = u + (k / kWidth * kElements + i) * inputs * kWidth;
        for (int64_t tile = 0; tile < last - first; tile += kTileRows)
          multiply_block<kTileRows>(inputs, v + i * v_element + tile * v_tile, v_tile, 1, filters,
                                    kWidth, m + i * m_element + tile * kWidth, kWidth, false);
      }
      shape.for_each_run(first, last, [&](int64_t index, int64_t image, int64_t row,
                                          int64_t column, int64_t count) {
        for (int lane = 0; lane < kWidth; lane += kLanes)
          transform_outputs(m + index * kWidth + lane, m_element, shape, row, column, count,
                            y + (image * outputs + k + lane) * shape.pixels());
      });
    }
  }
}

// G' u G of all filters, u (16, cout, cin) -> dw (cout, cin, 3, 3).
void transform_filter_gradients(const float* u, int64_t cout, int64_t cin, float* dw) {
#pragma omp parallel for schedule(static)
  for (int64_t k = 0; k < cout; ++k)
    for (int64_t c = 0; c < cin; c += kLanes) {
      Vector elements[4], columns[3], h[3][4], g[9];
      for (int j = 0; j < 4; ++j) {
        for (int i = 0; i < 4; ++i) elements[i] = *at(u + ((4 * i + j) * cout + k) * cin + c);
        multiply_by_g_transposed(elements, columns);
        for (int i = 0; i < 3; ++i) h[i][j] = columns[i];
      }
      for (int i = 0; i < 3; ++i) multiply_by_g_transposed(h[i], g + 3 * i);
      const float* lanes = reinterpret_cast<const float*>(g);
      for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < 9; ++i) dw[(k * cin + c + lane) * 9 + i] = lanes[i * kLanes + lane];
    }
}
}  // namespace

// Whether the functions below can compute the convolution x (N, cin, H, W) -> y (N, cout, H, W), w
// (cout, cin, 3, 3), and its gradients, and are not slower than oneDNN. With few tiles they are: the
// filters are transformed for any number. `settings` as in convolutions.cc; the padding after the
// last element is that before the first.
bool should_use_winograd(const int64_t* x, const int64_t* w, const int32_t* settings) {
  for (int i = 0; i < 5; ++i)  // strides, padding, groups
    if (settings[i] != 1) return false;
  if (w[2] != 3 || w[3] != 3 || w[0] % kChannels != 0 || w[1] % kChannels != 0) return false;
  return 8 * Shape{x[0], x[2], x[3]}.tiles() > std::max(w[0], w[1]);
}

// x, w -> y, or, as the gradient of the input, dy, w -> dx.
void convolve_by_winograd(bool is_input_grad, const int64_t* x_shape, const int64_t* w_shape,
                          const float* x, const float* w, float* y) {
  static FloatBuffer filters;
  const int64_t inputs = w_shape[is_input_grad ? 0 : 1], outputs = w_shape[is_input_grad ? 1 : 0];
  float* u = filters.reserve(kElements * inputs * outputs);
  transform_filters(w, is_input_grad, outputs, inputs, u);
  convolve(x, u, {x_shape[0], x_shape[2], x_shape[3]}, inputs, outputs, y);
}

// dy, x -> dw
void compute_weight_grad_by_winograd(const int64_t* x_shape, const int64_t* w_shape,
                                     const float* dy, const float* x, float* dw) {
  static FloatBuffer inputs, gradients, products;
  const Shape shape{x_shape[0], x_shape[2], x_shape[3]};
  const int64_t cout = w_shape[0], cin = w_shape[1], tiles = shape.tiles();
  const int64_t groups = (tiles + kGroup - 1) / kGroup;
  const int64_t v_tile = cin + kLine, v_element = kGroup * v_tile;
  const int64_t z_tile = cout + kLine, z_element = kGroup * z_tile;
  float* v = inputs.reserve(kElements * v_element);
  float* z = gradients.reserve(kElements * z_element);
  float* u = products.reserve(kElements * cout * cin);
#pragma omp parallel
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t first = tiles * group / groups, last = tiles * (group + 1) / groups;
#pragma omp for schedule(static, 1)
    for (int64_t line = 0; line < cin + cout; line += kLine)  // only one thread writes it
      for (int64_t channel = line; channel < line + kLine; channel += kLanes)
        shape.for_each_run(first, last, [&](int64_t index, int64_t image, int64_t row,
                                            int64_t column, int64_t count) {
          const int64_t c = channel, k = channel - cin;
          if (c < cin)
            transform_inputs(x + (image * cin + c) * shape.pixels(), shape, row, column, count,
                             v + index * v_tile + c, v_element, v_tile);
          else
            transform_output_gradients(dy + (image * cout + k) * shape.pixels(), shape, row, column,
                                       count, z + index * z_tile + k, z_element, z_tile);
        });
#pragma omp for schedule(static) collapse(2)
    for (int i = 0; i < kElements; ++i)
      for (int64_t c = 0; c < cin; c += kWidth)
        for (int64_t k = 0; k < cout; k += kRows)
          multiply_block<kRows>(last - first, z + i * z_element + k, 1, z_tile,
                                v + i * v_element + c, v_tile, u + (i * cout + k) * cin + c, cin,
                                group > 0);
  }
  transform_filter_gradients(u, cout, cin, dw);
}
