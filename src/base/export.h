/* What one of Shoal's libraries offers to Shoal's libraries above it, and to nobody else.
   Such symbols are exported under the version SHOAL_PRIVATE_x.y.z (cmake/symbols.map.in):
   the loader refuses libraries of two different builds. Everything without this mark or
   SHOAL_API stays inside its library. */
#ifndef SHOAL_BASE_EXPORT_H
#define SHOAL_BASE_EXPORT_H

#if defined(_WIN32)
#define SHOAL_PRIVATE
#else
#define SHOAL_PRIVATE __attribute__((visibility("default")))
#endif

#endif
