"""The engine on real stores, with time as an argument where time matters."""
