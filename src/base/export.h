/* Symbols that a library of Shoal exports only for the Shoal libraries above it. They
   have the version SHOAL_PRIVATE_x.y.z (cmake/symbols.map.in), so that the loader
   rejects libraries of different builds. Symbols without this mark or SHOAL_API are
   hidden. */
#ifndef SHOAL_BASE_EXPORT_H
#define SHOAL_BASE_EXPORT_H

#if defined(_WIN32)
#define SHOAL_PRIVATE
#else
#define SHOAL_PRIVATE __attribute__((visibility("default")))
#endif

#endif
