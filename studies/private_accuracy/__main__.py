from studies.private_accuracy.study import main

main()
