"""Public mathematics: losses, regularisers, constraint sets and mirror maps. Knows nothing of privacy."""
