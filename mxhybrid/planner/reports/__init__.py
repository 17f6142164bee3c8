"""What people see of a prediction: tables, the critical path in words, diagrams, timelines."""
