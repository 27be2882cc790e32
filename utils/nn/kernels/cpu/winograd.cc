// 3x3 convolutions with stride 1 and a border of one zero by Winograd's algorithm F(2x2, 3x3)
// (Lavin and Gray, arXiv:1509.09308): 16 products instead of 36 for four outputs.
//
// A tile is 2x2 outputs; it needs 4x4 pixels, which overlap those of its neighbours. With d, g and y
// the pixels, weights and outputs of a tile and a channel,
//   y = A' [(G g G') * (B' d B)] A,   dg = G' [(A dy A') * (B' d B)] G
//   B' = 1  0 -1  0     G =  1    0    0     A' = 1  1  1  0
//        0  1  1  0         1/2  1/2  1/2         0  1 -1 -1
//        0 -1  1  0         1/2 -1/2  1/2
//        0  1  0 -1          0    0    1
// where * multiplies elements. The sum over channels, or for dg over tiles, makes a matrix product of
// each of the 16 elements. Results do not depend on the number of threads.
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace {
#ifdef __AVX512F__
constexpr int kLanes = 16, kRows = 8;
#else
constexpr int kLanes = 8, kRows = 4;
#endif
constexpr int kWidth = 2 * kLanes;      // columns of a block of a product, which has kRows rows
constexpr int kElements = 16;           // of a transformed tile
constexpr int64_t kTiles = 48;          // that a thread transforms at once
constexpr int64_t kGroup = 256;         // tiles of a product for the gradients of weights
constexpr int64_t kLine = 16;           // floats of a line of a cache; also the gap between rows, so
                                        // that they are in different places of it
typedef float Vector __attribute__((vector_size(4 * kLanes)));
typedef int Mask __attribute__((vector_size(4 * kLanes)));

Vector* at(float* p) { return reinterpret_cast<Vector*>(p); }
const Vector* at(const float* p) { return reinterpret_cast<const Vector*>(p); }

struct Buffer {
  float* data = nullptr;
  int64_t size = 0;
  float* reserve(int64_t needed) {
    if (needed > size) {
      std::free(data);
      size = (needed + 1023) / 1024 * 1024;
      data = static_cast<float*>(std::aligned_alloc(4096, 4 * size));
      if (!data) throw std::runtime_error("out of memory");
      std::memset(data, 0, 4 * size);
    }
    return data;
  }
};

struct Maps {
  int64_t images, height, width;

  int64_t pixels() const { return height * width; }
  int64_t rows() const { return (height + 1) / 2; }  // of tiles
  int64_t columns() const { return (width + 1) / 2; }
  int64_t tiles() const { return images * rows() * columns(); }

  // Calls function(tile - first, image, row, column, count) for tiles first to last, in pieces of
  // up to kTiles tiles of a row.
  template <class F>
  void for_each_piece(int64_t first, int64_t last, F function) const {
    for (int64_t t = first, count; t < last; t += count) {
      const int64_t column = t % columns(), row = t / columns() % rows();
      count = std::min({columns() - column, last - t, kTiles});
      function(t - first, t / columns() / rows(), row, column, count);
    }
  }
};

// Exchanges bit `kBit` of the row number and of the lane.
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

// Columns begin to end of a row of kLanes maps -> (end - begin, kLanes); 0 outside of the maps.
void load_row(const float* x, const Maps& maps, int64_t row, int64_t begin, int64_t end, Vector* y) {
  const bool is_inside = row >= 0 && row < maps.height;
  const int64_t first = is_inside ? std::max<int64_t>(begin, 0) : end;
  const int64_t last = std::min(end, maps.width);
  int64_t q = begin;
  for (; q < first; ++q) y[q - begin] = Vector{};
  x += row * maps.width;
  for (; q + kLanes <= last; q += kLanes) {
    Vector* to = y + q - begin;
    for (int i = 0; i < kLanes; ++i) std::memcpy(to + i, x + i * maps.pixels() + q, sizeof(Vector));
    transpose(to);
  }
  float* to = reinterpret_cast<float*>(y - begin);
  for (; q < last; ++q)
    for (int i = 0; i < kLanes; ++i) to[q * kLanes + i] = x[i * maps.pixels() + q];
  for (; q < end; ++q) y[q - begin] = Vector{};
}

// (end - begin, kLanes) -> columns begin to end of a row of kLanes maps; nothing outside of them.
void store_row(Vector* y, const Maps& maps, int64_t row, int64_t begin, int64_t end, float* x) {
  if (row >= maps.height) return;
  x += row * maps.width;
  const int64_t last = std::min(end, maps.width);
  int64_t q = begin;
  for (; q + kLanes <= last; q += kLanes) {
    Vector* from = y + q - begin;
    transpose(from);
    for (int i = 0; i < kLanes; ++i) std::memcpy(x + i * maps.pixels() + q, from + i, sizeof(Vector));
  }
  const float* from = reinterpret_cast<const float*>(y - begin);
  for (; q < last; ++q)
    for (int i = 0; i < kLanes; ++i) x[i * maps.pixels() + q] = from[q * kLanes + i];
}

// B' d B of `count` tiles of kLanes maps -> v[element * stride + tile * pitch].
void transform_pixels(const float* x, const Maps& maps, int64_t row, int64_t column, int64_t count,
                      float* v, int64_t stride, int64_t pitch) {
  const int64_t begin = 2 * column - 1, end = begin + 2 * count + 2;
  Vector d[4][2 * kTiles + 2];
  for (int i = 0; i < 4; ++i) load_row(x, maps, 2 * row - 1 + i, begin, end, d[i]);
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
      float* to = v + 4 * i * stride + t * pitch;
      *at(to) = b[0] - b[2];
      *at(to + stride) = b[1] + b[2];
      *at(to + 2 * stride) = b[2] - b[1];
      *at(to + 3 * stride) = b[1] - b[3];
    }
}

// A dy A' of `count` tiles of kLanes maps -> z[element * stride + tile * pitch].
void transform_gradients(const float* dy, const Maps& maps, int64_t row, int64_t column, int64_t count,
                         float* z, int64_t stride, int64_t pitch) {
  const int64_t begin = 2 * column, end = begin + 2 * count;
  Vector d[4][2 * kTiles];
  load_row(dy, maps, 2 * row, begin, end, d[0]);
  load_row(dy, maps, 2 * row + 1, begin, end, d[3]);
  for (int64_t q = 0; q < end - begin; ++q) {
    d[1][q] = d[0][q] + d[3][q];
    d[2][q] = d[0][q] - d[3][q];
    d[3][q] = -d[3][q];
  }
  for (int64_t t = 0; t < count; ++t)
    for (int i = 0; i < 4; ++i) {
      const Vector* b = d[i] + 2 * t;
      float* to = z + 4 * i * stride + t * pitch;
      *at(to) = b[0];
      *at(to + stride) = b[0] + b[1];
      *at(to + 2 * stride) = b[0] - b[1];
      *at(to + 3 * stride) = -b[1];
    }
}

// A' m A of `count` tiles of kLanes maps, m[element * stride + tile * kWidth] -> two rows of y.
void transform_sums(const float* m, int64_t stride, const Maps& maps, int64_t row, int64_t column,
                    int64_t count, float* y) {
  Vector out[2][2 * kTiles];
  for (int64_t t = 0; t < count; ++t) {
    Vector top[4], bottom[4];
    for (int i = 0; i < 4; ++i) {
      const float* from = m + i * stride + t * kWidth;
      const Vector m1 = *at(from + 4 * stride), m2 = *at(from + 8 * stride);
      top[i] = *at(from) + m1 + m2;
      bottom[i] = m1 - m2 - *at(from + 12 * stride);
    }
    out[0][2 * t] = top[0] + top[1] + top[2];
    out[0][2 * t + 1] = top[1] - top[2] - top[3];
    out[1][2 * t] = bottom[0] + bottom[1] + bottom[2];
    out[1][2 * t + 1] = bottom[1] - bottom[2] - bottom[3];
  }
  for (int i = 0; i < 2; ++i)
    store_row(out[i], maps, 2 * row + i, 2 * column, 2 * (column + count), y);
}

// G g of three vectors -> four.
void expand(const Vector* g, Vector* u) {
  const Vector sum = 0.5f * (g[0] + g[2]), half = 0.5f * g[1];
  u[0] = g[0];
  u[1] = sum + half;
  u[2] = sum - half;
  u[3] = g[2];
}

// G' u of four vectors -> three.
void contract(const Vector* u, Vector* g) {
  const Vector sum = 0.5f * (u[1] + u[2]);
  g[0] = u[0] + sum;
  g[1] = 0.5f * (u[1] - u[2]);
  g[2] = sum + u[3];
}

// G g G' of all weights (cout, cin, 3, 3) -> u (outputs / kWidth, 16, inputs, kWidth). For the
// gradient of the input the weights are turned, and the inputs are the cout channels.
void transform_weights(const float* w, bool is_turned, int64_t outputs, int64_t inputs, float* u) {
#pragma omp parallel for schedule(static)
  for (int64_t k = 0; k < outputs; k += kLanes)
    for (int64_t c = 0; c < inputs; ++c) {
      Vector g[3][3], h[3][4], columns[3], elements[4];
      float* lanes = reinterpret_cast<float*>(g);
      for (int lane = 0; lane < kLanes; ++lane) {
        const float* from = w + 9 * (is_turned ? c * outputs + k + lane : (k + lane) * inputs + c);
        for (int i = 0; i < 9; ++i) lanes[i * kLanes + lane] = from[is_turned ? 8 - i : i];
      }
      for (int i = 0; i < 3; ++i) expand(g[i], h[i]);
      const int64_t stride = inputs * kWidth;
      float* to = u + k / kWidth * kElements * stride + c * kWidth + k % kWidth;
      for (int j = 0; j < 4; ++j) {
        for (int i = 0; i < 3; ++i) columns[i] = h[i][j];
        expand(columns, elements);
        for (int i = 0; i < 4; ++i) *at(to + (4 * i + j) * stride) = elements[i];
      }
    }
}

// m (kRows, kWidth) = a b, or m += a b: a[row * a_row + i * a_step], b[i * b_pitch + column].
void multiply_block(int64_t depth, const float* a, int64_t a_row, int64_t a_step, const float* b,
                    int64_t b_pitch, float* m, int64_t m_pitch, bool adds) {
  Vector sums[kRows][2] = {};
  for (int64_t i = 0; i < depth; ++i, a += a_step, b += b_pitch) {
    const Vector left = at(b)[0], right = at(b)[1];
    for (int row = 0; row < kRows; ++row) {
      sums[row][0] += a[row * a_row] * left;
      sums[row][1] += a[row * a_row] * right;
    }
  }
  for (int row = 0; row < kRows; ++row)
    for (int i = 0; i < 2; ++i) {
      Vector* to = at(m + row * m_pitch) + i;
      *to = adds ? *to + sums[row][i] : sums[row][i];
    }
}

// x (N, inputs, H, W), u of transform_weights -> y (N, outputs, H, W).
void convolve(const float* x, const float* u, const Maps& maps, int64_t inputs, int64_t outputs,
              float* y) {
  static Buffer pixels, sums;
  const int64_t threads = omp_get_max_threads(), tiles = maps.tiles();
  const int64_t parts = ((tiles + kTiles - 1) / kTiles + threads - 1) / threads * threads;
  const int64_t pitch = inputs + kLine, v_stride = kTiles * pitch, m_stride = kTiles * kWidth;
  float* all_pixels = pixels.reserve(threads * kElements * v_stride);
  float* all_sums = sums.reserve(threads * kElements * m_stride);
#pragma omp parallel for schedule(static)
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = tiles * part / parts, last = tiles * (part + 1) / parts;
    float* v = all_pixels + omp_get_thread_num() * kElements * v_stride;
    float* m = all_sums + omp_get_thread_num() * kElements * m_stride;
    maps.for_each_piece(first, last, [&](int64_t t, int64_t image, int64_t row, int64_t column,
                                         int64_t count) {
      for (int64_t c = 0; c < inputs; c += kLanes)
        transform_pixels(x + (image * inputs + c) * maps.pixels(), maps, row, column, count,
                         v + t * pitch + c, v_stride, pitch);
    });
    for (int64_t k = 0; k < outputs; k += kWidth) {
      for (int i = 0; i < kElements; ++i) {
        const float* weights = u + (k / kWidth * kElements + i) * inputs * kWidth;
        for (int64_t t = 0; t < last - first; t += kRows)
          multiply_block(inputs, v + i * v_stride + t * pitch, pitch, 1, weights, kWidth,
                         m + i * m_stride + t * kWidth, kWidth, false);
      }
      maps.for_each_piece(first, last, [&](int64_t t, int64_t image, int64_t row, int64_t column,
                                           int64_t count) {
        for (int lane = 0; lane < kWidth; lane += kLanes)
          transform_sums(m + t * kWidth + lane, m_stride, maps, row, column, count,
                         y + (image * outputs + k + lane) * maps.pixels());
      });
    }
  }
}

// The products of transformed gradients and pixels -> dw (cout, cin, 3, 3).
void transform_products(const float* u, int64_t cout, int64_t cin, float* dw) {
#pragma omp parallel for schedule(static)
  for (int64_t k = 0; k < cout; ++k)
    for (int64_t c = 0; c < cin; c += kLanes) {
      Vector elements[4], columns[3], h[3][4], g[9];
      for (int j = 0; j < 4; ++j) {
        for (int i = 0; i < 4; ++i) elements[i] = *at(u + ((4 * i + j) * cout + k) * cin + c);
        contract(elements, columns);
        for (int i = 0; i < 3; ++i) h[i][j] = columns[i];
      }
      for (int i = 0; i < 3; ++i) contract(h[i], g + 3 * i);
      const float* lanes = reinterpret_cast<const float*>(g);
      for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < 9; ++i) dw[(k * cin + c + lane) * 9 + i] = lanes[i * kLanes + lane];
    }
}
}  // namespace

// Whether the functions below compute the convolution x (N, cin, H, W) -> y (N, cout, H, W), w (cout,
// cin, 3, 3), in less time than oneDNN: there are enough tiles for the transformed weights.
bool is_winograd_faster(const int64_t* x, const int64_t* w, const int32_t* settings) {
  for (int i = 0; i < 5; ++i)  // strides, zeros before the first element, groups
    if (settings[i] != 1) return false;
  const bool is_3x3 = w[2] == 3 && w[3] == 3, fits = w[0] % 64 == 0 && w[1] % 64 == 0;
  return is_3x3 && fits && 8 * Maps{x[0], x[2], x[3]}.tiles() > std::max(w[0], w[1]);
}

// x, w -> y, or, as the gradient of the input, dy, w -> dx.
void convolve_by_winograd(bool is_input_grad, const int64_t* x_shape, const int64_t* w_shape,
                          const float* x, const float* w, float* y) {
  static Buffer weights;
  const int64_t inputs = w_shape[is_input_grad ? 0 : 1], outputs = w_shape[is_input_grad ? 1 : 0];
  float* u = weights.reserve(kElements * inputs * outputs);
  transform_weights(w, is_input_grad, outputs, inputs, u);
  convolve(x, u, {x_shape[0], x_shape[2], x_shape[3]}, inputs, outputs, y);
}

// dy, x -> dw
void compute_weight_grad_by_winograd(const int64_t* x_shape, const int64_t* w_shape,
                                     const float* dy, const float* x, float* dw) {
  static Buffer pixels, gradients, products;
  const Maps maps{x_shape[0], x_shape[2], x_shape[3]};
  const int64_t cout = w_shape[0], cin = w_shape[1], tiles = maps.tiles();
  const int64_t groups = (tiles + kGroup - 1) / kGroup;
  const int64_t v_pitch = cin + kLine, v_stride = kGroup * v_pitch;
  const int64_t z_pitch = cout + kLine, z_stride = kGroup * z_pitch;
  float* v = pixels.reserve(kElements * v_stride);
  float* z = gradients.reserve(kElements * z_stride);
  float* u = products.reserve(kElements * cout * cin);
#pragma omp parallel
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t first = tiles * group / groups, last = tiles * (group + 1) / groups;
#pragma omp for schedule(static, 1)
    for (int64_t block = 0; block < cin + cout; block += kLine)  // a line of the cache is one thread's
      for (int64_t channel = block; channel < block + kLine; channel += kLanes)
        maps.for_each_piece(first, last, [&](int64_t t, int64_t image, int64_t row, int64_t column,
                                             int64_t count) {
          const int64_t c = channel, k = channel - cin;
          if (c < cin)
            transform_pixels(x + (image * cin + c) * maps.pixels(), maps, row, column, count,
                             v + t * v_pitch + c, v_stride, v_pitch);
          else
            transform_gradients(dy + (image * cout + k) * maps.pixels(), maps, row, column, count,
                                z + t * z_pitch + k, z_stride, z_pitch);
        });
#pragma omp for schedule(static) collapse(2)
    for (int i = 0; i < kElements; ++i)
      for (int64_t c = 0; c < cin; c += kWidth)
        for (int64_t k = 0; k < cout; k += kRows)
          multiply_block(last - first, z + i * z_stride + k, 1, z_pitch, v + i * v_stride + c,
                         v_pitch, u + (i * cout + k) * cin + c, cin, group > 0);
  }
  transform_products(u, cout, cin, dw);
}
