"""The labels of the paper's PATE student (Section 4.3): the authors' noisy answers for SVHN test images.

They come from the file `gnmax_t200_ts_200_n_40` of the authors' repository: Confident-GNMax with threshold 200, sigma1
200 and sigma2 40, asked about the images in file order. Classes are numbered as SVHN's: 0 is the digit 1, 9 the digit
0.
"""

from __future__ import annotations

ANSWERS = (
    "4..9..80.7.54...0...1..81.3.3...4.904.011.5...019.80..87.46.11.3.9...1.40.35.420..60.060.06353316.6..71..1...5265"
    "..61..1770.09..11....7..0.2.135..0..2..80..853538..0.01.16411.3185....037..0......250.26..4..09360912.200..9.6.1."
    ".1..14.5.0.52.6.0..6292."
)
"""The answers to the first 250 queries, a class per image, a dot where the query was refused."""

LATER = "8..26.0..5...2292..080.2.1.0..5.74.8.80..1....1....18.0.4.....82..9...103.5.55...53013.02.23.4"
"""The next 94 queries, which the authors' split takes some labels from."""

OFFICIAL_ROWS = (
    "7 20 78 26 0 58 3 11 6 9 16 24 110 28 35 39 12 82 34 42 38 40 23 139 63 46 32 47 55 51 86 149 48 75 74 72 60 36 "
    "50 79 61 195 90 91 83 69 65 57 92 101 85 199 95 93 87 96 54 102 71 89 213 125 109 94 122 105 98 124 116 215 77 "
    "120 142 152 207 137 119 112 238 146 171 111 128 158 153 211 129 246 164 203 156 143 115 121 160 166 141 248 183 "
    "167 231 220 175 188 169 170 253 157 161 197 172 184 283 134 206 263 247 200 173 210 159 208 306 216 176 264 177 "
    "217 212 265 209 322 235 266 343 224 178 185"
)
"""The images that the authors' split labels, in its order: 138 chosen class by class in the proportions of all answers
to the pool of 10,000 images, so that 9 of them are not among the first 250 queries."""
OFFICIAL_VALID = 242
"""The image that the authors' split holds out: the first one left of the most frequent class."""
